#include "engine/cli/speaker.hpp"

#include <fmt/format.h>

#include <chrono>
#include <ostream>

#include "engine/base/error.hpp"
#include "engine/cli/checkpoint_tokenizer.hpp"
#include "engine/cli/thread_count.hpp"
#include "engine/cli/weight_place_flag.hpp"
#include "engine/runtime/generation_config.hpp"
#include "engine/text/stop_ids.hpp"
#include "engine/text/stop_strings.hpp"

namespace kalibri::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// A line on a terminal, from two seconds on, that is gone when the prompt is read.
class PromptProgress {
 public:
  PromptProgress(std::ostream* out, Clock::time_point start) : out_(out), start_(start) {}
  void tell(std::int64_t n_held, std::int64_t n_all) {
    constexpr double kPatience_s = 2;
    if (out_ == nullptr || seconds_since(start_) < kPatience_s) return;
    if (n_held < n_all) {
      *out_ << fmt::format("\rreading the prompt: {} of {} tokens", n_held, n_all) << std::flush;
      is_shown_ = true;
    } else if (is_shown_) {
      *out_ << "\r\033[K" << std::flush;
    }
  }

 private:
  std::ostream* out_;
  Clock::time_point start_;
  bool is_shown_ = false;
};

double per_second(std::int64_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0; }

}  // namespace

Speaker::Speaker(const SpeakerFlags& flags, std::ostream& notes)
    : checkpoint_(checkpoint::Checkpoint::open(flags.directory)),
      pool_(thread_count(flags.n_threads)),
      model_(checkpoint_, runtime::Precision::parse(flags.precision), expert_cache(flags.expert_cache),
             weight_place(flags.weights, pool_.n_threads())),
      tokenizer_(load_tokenizer(flags.directory, model_.info(), "", &notes)),
      chunk_(flags.chunk),
      stop_(flags.stop) {
  const text::StopStrings checked(stop_);
  tell_weight_place(model_.weight_place(), /*is_asked=*/flags.weights != "auto", notes);
  tell_expert_cache(model_, notes);
  if (flags.max_tokens < 1) throw Error(ErrorCode::usage, "--max-tokens: expected at least 1");
  options_.max_tokens = flags.max_tokens;
  if (!flags.ignore_eos) options_.stop_ids = text::stop_ids(flags.directory, tokenizer_);
  options_.n_ids = tokenizer_.n_ids();
  options_.sampling = sampling_options(flags.sampling, runtime::recommended_sampling(flags.directory), options_.n_ids);
  if (!flags.sampling.seed && options_.sampling.temperature > 0) {
    notes << fmt::format("kalibri: seed {} (--seed {} repeats this)\n", options_.sampling.seed, options_.sampling.seed);
  }
}

model::Generator Speaker::start(std::int64_t max_tokens, model::Generator::PromptState prompt_state) {
  return {model_, pool_, {.max_tokens = max_tokens, .chunk = chunk_}, prompt_state};
}

Answer Speaker::answer(model::Generator& generator, const Question& question,
                       const std::function<bool(std::string_view)>& out, const std::atomic<bool>& cancelled,
                       std::ostream* progress) const {
  Answer answer;
  const runtime::ExpertStatistics before = model_.expert_statistics();
  text::StreamDecoder decoder(tokenizer_, /*skip_special=*/true);
  text::StopStrings stop(stop_);
  const auto tell = [&](const std::string& text) {
    answer.text += text;
    return text.empty() || out(text);
  };
  const Clock::time_point start = Clock::now();
  PromptProgress prompt_progress(progress, start);
  model::GenerateOptions options = options_;
  options.sampling.seed += question.n_answers_before;
  options.n_kept = question.n_kept;
  bool is_first = true;
  answer.generated =
      generator.run(question.ids, options,
                    {.prompt = [&](std::int64_t n_held, std::int64_t n_all) { prompt_progress.tell(n_held, n_all); },
                     .token =
                         [&](std::int32_t id, std::span<const float>) {
                           if (is_first) answer.prompt_s = seconds_since(start);
                           is_first = false;
                           return tell(stop.feed(decoder.feed(id))) && !stop.has_matched();
                         },
                     .cancelled = &cancelled});
  if (is_first) answer.prompt_s = seconds_since(start);
  tell(stop.feed(decoder.flush()));
  tell(stop.flush());
  answer.answer_s = seconds_since(start) - answer.prompt_s;
  answer.n_prompt = static_cast<std::int64_t>(question.ids.size());
  answer.n_threads = pool_.n_threads();
  if (model_.expert_cache()) answer.experts = model_.expert_statistics() - before;
  const model::EndReason reason = answer.generated.reason;
  const bool is_cut = reason == model::EndReason::max_tokens && !stop.has_matched();
  answer.end = reason == model::EndReason::cancelled ? "cancelled" : is_cut ? "length" : "stop";
  return answer;
}

std::string stats_line(const Answer& answer) {
  const auto n_answer = static_cast<std::int64_t>(answer.generated.ids.size());
  const auto rate = [](std::int64_t n, double seconds) {  // of nothing there is none
    return n > 0 ? fmt::format(", {:.1f} tok/s", per_second(n, seconds)) : "";
  };
  return fmt::format(
      "prompt: {} tokens, {} of them reused{}; first token after {:.3f} s; answer: {} tokens{}{}; end: {}\n",
      answer.n_prompt, answer.generated.n_reused, rate(answer.generated.n_prefilled, answer.prompt_s), answer.prompt_s,
      n_answer, rate(n_answer - 1, answer.answer_s),
      answer.experts ? expert_statistics_text(*answer.experts, answer.n_threads) : "", answer.end);
}

}  // namespace kalibri::cli
