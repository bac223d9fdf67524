// Reads a prompt and writes tokens after it, one conversation after the other: what the model already holds of a prompt
// is not read again. It knows token ids and no text, and neither clock nor terminal.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/model/session.hpp"
#include "engine/runtime/sampler.hpp"

namespace kalibri::model {

struct GenerateOptions {
  std::int64_t max_tokens = 1;              // at least 1; fewer where the session has no room for as many
  std::vector<std::int32_t> stop_ids = {};  // each ends the answer
  std::int64_t n_ids = 0;                   // ids from here on are padding and never taken; 0: every id may be
  std::int64_t n_kept = 0;                  // with PromptState::kept: a place within the prompt; 0: its end alone
  runtime::SamplingOptions sampling = {};
};

/// What a caller may look at and stop. Each may be empty.
struct GenerateHooks {
  /// After each chunk of the prompt: its tokens that are held, and all.
  std::function<void(std::int64_t n_held, std::int64_t n_all)> prompt = {};
  /// After each token but a stop id, with the logits [V] that it was taken from. False: that was the last one.
  std::function<bool(std::int32_t id, std::span<const float> logits)> token = {};
  /// Looked at before each chunk and each token; true ends the call.
  const std::atomic<bool>* cancelled = nullptr;
};

enum class EndReason { stop_id, max_tokens, caller, cancelled };

struct Generated {
  std::vector<std::int32_t> ids;  // every id that was taken, a stop id at the end included
  EndReason reason = EndReason::max_tokens;
  std::int64_t n_reused = 0;     // tokens of the prompt that were held before
  std::int64_t n_prefilled = 0;  // tokens of the prompt that went through the model now
};

class Generator {
 public:
  enum class PromptState { forgotten, kept };

  /// Model and pool outlive it. `kept`: the state after each prompt, and after its first n_kept tokens, is copied, so
  /// that a next prompt may go another way from there on. Throws as Session does.
  Generator(const Model& model, ThreadPool& pool, const SessionOptions& options, PromptState prompt_state);

  /// The same ids and bits as by a new generator, whatever ran before. Throws Error(input): an empty prompt, one that
  /// leaves no room for a token, an id outside the vocabulary; Error(usage): sampling options outside their ranges.
  Generated run(std::span<const std::int32_t> prompt, const GenerateOptions& options, const GenerateHooks& hooks = {});

  /// Tells `clock` where the time of the runs that follow goes; null: no more. Must outlive its use.
  void measure(runtime::PhaseClock* clock);

  /// Tokens that a prompt and its answer may have together.
  [[nodiscard]] std::int64_t max_tokens() const { return options_.max_tokens; }

 private:
  void check(std::span<const std::int32_t> prompt, const GenerateOptions& options) const;
  void start_anew();
  std::int64_t reuse(std::span<const std::int32_t> prompt);
  bool prefill(std::span<const std::int32_t> prompt, const GenerateOptions& options, const GenerateHooks& hooks);
  void keep(std::size_t n_kept, std::size_t n_all);
  void feed(std::span<const std::int32_t> ids, bool wants_logits);

  /// The state after the first n of held_; logits are empty unless they were computed there.
  struct KeptPrompt {
    std::shared_ptr<const Session::Snapshot> state;
    std::size_t n = 0;
    std::vector<float> logits;
  };

  const Model& model_;
  ThreadPool& pool_;
  SessionOptions options_;
  PromptState prompt_state_;
  runtime::PhaseClock* clock_ = nullptr;
  std::optional<Session> session_;
  bool state_is_known_ = false;     // false: the session broke off in the middle of something
  std::vector<std::int32_t> held_;  // the ids whose state the session holds
  std::vector<float> logits_;       // [V] after the last of them; empty: not computed
  std::vector<KeptPrompt> kept_;  // two at most
};

}  // namespace kalibri::model
