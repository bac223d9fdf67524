#include "engine/runtime/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/error.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::runtime {

namespace {

constexpr std::size_t kMaxBiases = 1024;
constexpr double kLowestExponent = -1000;  // exp is 0 long before; an infinity is no f32

/// NaN is in no range.
void expect_range(const char* name, double value, double lowest, double highest) {
  if (!(value >= lowest && value <= highest)) {
    throw Error(ErrorCode::usage, fmt::format("{}: found {}, expected {} to {}", name, value, lowest, highest));
  }
}

/// A permutation that scatters neighbouring numbers.
std::uint64_t scatter(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

void validate(const SamplingOptions& options, std::int64_t vocab_size) {
  expect_range("temperature", options.temperature, 0, 2);
  if (options.top_k < 0) {
    throw Error(ErrorCode::usage, fmt::format("top_k: found {}, expected at least 0 (0: off)", options.top_k));
  }
  expect_range("top_p", options.top_p, 0, 1);
  expect_range("min_p", options.min_p, 0, 1);
  expect_range("repetition_penalty", options.repetition_penalty, 0, 10);
  if (options.repetition_penalty == 0) {
    throw Error(ErrorCode::usage, "repetition_penalty: found 0, expected above 0 (1: off)");
  }
  expect_range("presence_penalty", options.presence_penalty, -2, 2);
  expect_range("frequency_penalty", options.frequency_penalty, -2, 2);
  if (options.logit_bias.size() > kMaxBiases) {
    throw Error(ErrorCode::usage, fmt::format("logit_bias: more than {} ids", kMaxBiases));
  }
  std::set<std::int32_t> biased;
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      throw Error(ErrorCode::usage, fmt::format("logit_bias: id {}: expected 0 to {}", id, vocab_size - 1));
    }
    if (!biased.insert(id).second) throw Error(ErrorCode::usage, fmt::format("logit_bias: id {} twice", id));
    expect_range("logit_bias", bias, -100, 100);
  }
}

double random_unit(std::uint64_t seed, std::uint64_t draw) {
  return static_cast<double>(scatter(scatter(seed) + (draw + 1) * 0x9E3779B97F4A7C15U) >> 11) * 0x1p-53;
}

Sampler::Sampler(SamplingOptions options, std::span<const std::int32_t> prompt)
    : options_(std::move(options)),
      has_penalties_(options_.repetition_penalty != 1 || options_.presence_penalty != 0 ||
                     options_.frequency_penalty != 0) {
  if (options_.repetition_penalty == 1) return;
  for (const std::int32_t id : prompt) n_seen_.emplace(id, 0);
}

std::int32_t Sampler::next(std::span<const float> logits) {
  adjust(logits);
  const std::int32_t id =
      options_.temperature > 0 ? draw() : std::ranges::max_element(candidates_, {}, &Candidate::logit)->id;
  if (has_penalties_) ++n_seen_[id];
  return id;
}

/// Fills candidates_ with the logits after bias and penalties.
void Sampler::adjust(std::span<const float> logits) {
  candidates_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      throw Error(ErrorCode::tensor, fmt::format("the logit of token id {} is {}: no token can be chosen; "
                                                 "run 'kalibri verify DIR' to see where numbers leave their range",
                                                 i, logits[i]));
    }
    candidates_[i] = {static_cast<double>(logits[i]), 0, static_cast<std::int32_t>(i)};
  }
  const auto n_ids = static_cast<std::int32_t>(logits.size());
  for (const auto& [id, bias] : options_.logit_bias) {
    if (id < n_ids) candidates_[static_cast<std::size_t>(id)].logit += bias;
  }
  if (!has_penalties_) return;
  for (const auto& [id, n] : n_seen_) {
    if (id >= n_ids) continue;
    double& logit = candidates_[static_cast<std::size_t>(id)].logit;
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    logit -= options_.frequency_penalty * static_cast<double>(n);
    if (n > 0) logit -= options_.presence_penalty;
  }
}

std::int32_t Sampler::draw() {
  keep_top_k();
  const double highest = std::ranges::max_element(candidates_, {}, &Candidate::logit)->logit;
  for (Candidate& c : candidates_) {
    const double x = std::max((c.logit - highest) / options_.temperature, kLowestExponent);
    c.weight = static_cast<double>(kernels::exp_f32(static_cast<float>(x)));
  }
  keep_top_p();
  if (options_.min_p > 0) std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < options_.min_p; });

  const double target = random_unit(options_.seed, n_draws_++) * sum_of_weights();
  double passed = 0;  // ends at the sum, which is above the target since u < 1 and the highest weight is 1
  return std::ranges::find_if(candidates_, [&](const Candidate& c) { return (passed += c.weight) > target; })->id;
}

double Sampler::sum_of_weights() const {
  double sum = 0;
  for (const Candidate& c : candidates_) sum += c.weight;
  return sum;
}

void Sampler::keep_top_k() {
  if (options_.top_k == 0 || options_.top_k >= static_cast<std::int64_t>(candidates_.size())) return;
  std::ranges::nth_element(candidates_, candidates_.begin() + options_.top_k, is_before);
  candidates_.resize(static_cast<std::size_t>(options_.top_k));
  std::ranges::sort(candidates_, {}, &Candidate::id);
}

/// Takes candidates off a heap instead of sorting them all: mostly few of a large vocabulary are needed.
void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  const double wanted = options_.top_p * sum_of_weights();
  const auto is_after = [](const Candidate& a, const Candidate& b) { return is_before(b, a); };
  std::ranges::make_heap(candidates_, is_after);
  auto first_kept = candidates_.end();
  double reached = 0;
  do {
    std::ranges::pop_heap(candidates_.begin(), first_kept, is_after);
    reached += (--first_kept)->weight;
  } while (reached < wanted && first_kept != candidates_.begin());
  candidates_.erase(candidates_.begin(), first_kept);
  std::ranges::sort(candidates_, {}, &Candidate::id);
}

}  // namespace kalibri::runtime
