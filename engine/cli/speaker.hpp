// A model that reads and writes text: checkpoint, tokenizer and threads together, and one answer of it. What `generate`
// and `chat` share; neither templates nor terminals are known here.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/cli/expert_cache_flags.hpp"
#include "engine/cli/sampling_flags.hpp"
#include "engine/model/generator.hpp"
#include "engine/text/tokenizer.hpp"

namespace kalibri::cli {

struct SpeakerFlags {
  std::string directory;
  std::string precision = "native";
  std::int64_t chunk = 512;
  int n_threads = 0;  // 0 = one a core
  std::string weights = "auto";
  ExpertCacheFlags expert_cache;
  std::int64_t max_tokens = 512;
  SamplingFlags sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool stats = false;
};

struct Question {
  std::vector<std::int32_t> ids;
  std::int64_t n_kept = 0;             // of the ids, whose state a next prompt may go on from; 0: all
  std::uint64_t n_answers_before = 0;  // added to the seed
};

struct Answer {
  model::Generated generated;
  std::string text;      // up to a stop string
  const char* end = "";  // as OpenAI's finish_reason: "stop", "length"; or "cancelled"
  double prompt_s = 0;   // until the first token was there
  double answer_s = 0;   // from then until the last one
  std::int64_t n_prompt = 0;
  std::optional<runtime::ExpertStatistics> experts;  // with a cache of them
  int n_threads = 1;
};

class Speaker {
 public:
  /// Notes of the tokenizer and of the expert cache and a seed that was chosen by chance go to `notes`. Throws Error.
  Speaker(const SpeakerFlags& flags, std::ostream& notes);

  [[nodiscard]] const model::Model& model() const { return model_; }
  [[nodiscard]] const text::Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const runtime::SamplingOptions& sampling() const { return options_.sampling; }

  /// A session for prompts and answers of together at most max_tokens.
  model::Generator start(std::int64_t max_tokens, model::Generator::PromptState prompt_state);

  /// Answers `question`; `out` is given the text as it comes, in whole characters, and returns whether it wants more.
  /// progress (null: none) is told of a prompt that takes long.
  Answer answer(model::Generator& generator, const Question& question, const std::function<bool(std::string_view)>& out,
                const std::atomic<bool>& cancelled, std::ostream* progress) const;

 private:
  checkpoint::Checkpoint checkpoint_;
  ThreadPool pool_;
  model::Model model_;
  text::Tokenizer tokenizer_;
  std::int64_t chunk_;
  std::vector<std::string> stop_;
  model::GenerateOptions options_;
};

/// One line: how many tokens, how fast, and how it ended.
std::string stats_line(const Answer& answer);

}  // namespace kalibri::cli
