#include "engine/model/generator.hpp"

#include <algorithm>
#include <string>

#include "engine/base/error.hpp"

namespace kalibri::model {

namespace {

bool is_cancelled(const GenerateHooks& hooks) { return hooks.cancelled != nullptr && hooks.cancelled->load(); }

}  // namespace

Generator::Generator(const Model& model, ThreadPool& pool, const SessionOptions& options, PromptState prompt_state)
    : model_(model), pool_(pool), options_(options), prompt_state_(prompt_state) {
  start_anew();
}

Generated Generator::run(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                         const GenerateHooks& hooks) {
  check(prompt, options);
  const auto n_prompt = static_cast<std::int64_t>(prompt.size());
  Generated result;
  result.n_reused = reuse(prompt);
  const bool is_whole = prefill(prompt, options, hooks);
  result.n_prefilled = static_cast<std::int64_t>(held_.size()) - result.n_reused;
  result.reason = EndReason::cancelled;
  if (!is_whole) return result;

  const auto n_ids = static_cast<std::size_t>(options.n_ids == 0 ? model_.info().vocab_size : options.n_ids);
  const auto n_wanted = static_cast<std::size_t>(std::min(options.max_tokens, options_.max_tokens - n_prompt));
  runtime::Sampler sampler(options.sampling, prompt);
  while (!is_cancelled(hooks)) {
    const std::int32_t id = sampler.next(std::span(logits_).first(n_ids));
    result.ids.push_back(id);
    if (std::ranges::find(options.stop_ids, id) != options.stop_ids.end()) {
      result.reason = EndReason::stop_id;
      break;
    }
    if (hooks.token && !hooks.token(id, logits_)) {
      result.reason = EndReason::caller;
      break;
    }
    if (result.ids.size() == n_wanted) {
      result.reason = EndReason::max_tokens;
      break;
    }
    feed({&id, 1}, true);
  }
  return result;
}

void Generator::measure(runtime::PhaseClock* clock) {
  clock_ = clock;
  session_->measure(clock);
}

void Generator::check(std::span<const std::int32_t> prompt, const GenerateOptions& options) const {
  const auto n_prompt = static_cast<std::int64_t>(prompt.size());
  if (prompt.empty()) throw Error(ErrorCode::input, "the prompt is empty: a model needs at least one token");
  if (n_prompt >= options_.max_tokens) {
    throw Error(ErrorCode::input, "the prompt has " + std::to_string(n_prompt) +
                                      " tokens and leaves no room: at most " + std::to_string(options_.max_tokens) +
                                      " positions for prompt and answer together");
  }
  const std::int64_t vocab_size = model_.info().vocab_size;
  if (options.n_ids < 0 || options.n_ids > vocab_size) {
    throw Error(ErrorCode::input, std::to_string(options.n_ids) + " token ids, but the model has " +
                                      std::to_string(vocab_size) + " (config.json vocab_size)");
  }
  if (options.max_tokens < 1) throw Error(ErrorCode::usage, "an answer has at least one token");
  if (options.n_kept < 0 || options.n_kept > n_prompt) {
    throw Error(ErrorCode::usage, "n_kept: expected at most the prompt's " + std::to_string(n_prompt) + " tokens");
  }
  runtime::validate(options.sampling, vocab_size);
}

void Generator::start_anew() {
  session_.emplace(model_, pool_, options_);
  session_->measure(clock_);
  held_.clear();
  logits_.clear();
  kept_.clear();
  state_is_known_ = true;
}

/// Makes the session hold a beginning of `prompt`, as long as it can, and returns its length.
std::int64_t Generator::reuse(std::span<const std::int32_t> prompt) {
  const auto n_common = static_cast<std::size_t>(std::ranges::mismatch(held_, prompt).in1 - held_.begin());
  // Of what is held as far as the prompt, the logits have to be there as well.
  const auto serves = [&](std::size_t n, const std::vector<float>& logits) {
    return n <= n_common && (n < prompt.size() || !logits.empty());
  };
  std::erase_if(kept_, [&](const KeptPrompt& kept) { return kept.n > n_common; });
  if (!state_is_known_) {
    start_anew();
  } else if (!serves(held_.size(), logits_)) {
    const KeptPrompt* longest = nullptr;
    for (const KeptPrompt& kept : kept_) {
      if (serves(kept.n, kept.logits) && (longest == nullptr || kept.n > longest->n)) longest = &kept;
    }
    if (longest == nullptr) {
      start_anew();
    } else {
      session_->restore(*longest->state);
      held_.resize(longest->n);
      logits_ = longest->logits;
    }
  }
  return static_cast<std::int64_t>(held_.size());
}

/// Reads what is not held. False: cancelled before the end.
bool Generator::prefill(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        const GenerateHooks& hooks) {
  const std::size_t n_all = prompt.size();
  const std::size_t n_kept = options.n_kept == 0 ? n_all : static_cast<std::size_t>(options.n_kept);
  while (true) {
    if (held_.size() == n_kept || held_.size() == n_all) keep(n_kept, n_all);
    if (held_.size() == n_all) return true;
    if (is_cancelled(hooks)) return false;
    const std::size_t end = held_.size() < n_kept ? n_kept : n_all;
    const std::size_t n = std::min(static_cast<std::size_t>(options_.chunk), end - held_.size());
    feed(prompt.subspan(held_.size(), n), held_.size() + n == n_all);
    if (hooks.prompt) hooks.prompt(static_cast<std::int64_t>(held_.size()), static_cast<std::int64_t>(n_all));
  }
}

/// Copies the state as it is, unless there is a copy of it, in place of those of other places than these two.
void Generator::keep(std::size_t n_kept, std::size_t n_all) {
  if (prompt_state_ == PromptState::forgotten) return;
  std::erase_if(kept_, [&](const KeptPrompt& kept) { return kept.n != n_kept && kept.n != n_all; });
  const auto is_here = [&](const KeptPrompt& kept) { return kept.n == held_.size(); };
  const auto found = std::ranges::find_if(kept_, is_here);
  if (found == kept_.end()) {
    kept_.push_back({session_->snapshot(), held_.size(), logits_});
  } else if (found->logits.empty()) {
    found->logits = logits_;
  }
}

void Generator::feed(std::span<const std::int32_t> ids, bool wants_logits) {
  state_is_known_ = false;
  logits_.resize(wants_logits ? static_cast<std::size_t>(model_.info().vocab_size) : 0);
  session_->forward(ids, logits_);
  held_.insert(held_.end(), ids.begin(), ids.end());
  state_is_known_ = true;
}

}  // namespace kalibri::model
