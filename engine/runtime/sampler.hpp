// The next token from a row of logits. What is drawn is a function of the logits, the tokens so far, the options and
// the number of the draw: neither batching nor anything that ran before changes it. It knows no text and no file.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kalibri::runtime {

struct SamplingOptions {
  double temperature = 1.0;         // 0 to 2; 0: the highest logit, lowest id on ties, no random number
  std::int64_t top_k = 0;           // 0: off
  double top_p = 1.0;               // 0 to 1; 0 keeps one token, 1 is off
  double min_p = 0.0;               // 0 to 1, of the highest probability; 0: off
  double repetition_penalty = 1.0;  // above 0, at most 10; of tokens of prompt and answer; 1: off
  double presence_penalty = 0.0;    // -2 to 2; of tokens of the answer, once
  double frequency_penalty = 0.0;   // -2 to 2; of tokens of the answer, each time
  std::vector<std::pair<std::int32_t, double>> logit_bias = {};  // -100 to 100; at most 1,024, each id once
  std::uint64_t seed = 0;
};

/// Throws Error(usage) naming the option that is outside the ranges above, or whose id is not in [0, vocab_size).
void validate(const SamplingOptions& options, std::int64_t vocab_size);

/// Number `draw` of stream `seed`, in [0, 1), a multiple of 2^-53. Source: SplitMix64 (Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", 2014), started at the scattered seed and entered at `draw`.
double random_unit(std::uint64_t seed, std::uint64_t draw);

/// In this order: bias, penalties (repetition: positive logits are divided, others multiplied; then frequency and
/// presence are subtracted), temperature, top_k, top_p, min_p, draw. Candidates are ordered by falling logit, then by
/// id. With weights w = exp((logit - highest logit) / temperature):
/// - top_k keeps the first k;
/// - top_p keeps of these the fewest first ones whose weights reach top_p of the sum of these;
/// - min_p keeps of these those with w >= min_p;
/// - the draw goes through what is kept by rising id and takes the first whose running sum of weights exceeds u times
///   the sum of all, u = random_unit(seed, number of the draw).
/// Sums are f64, over a whole set by rising id, up to top_p in the candidates' order.
class Sampler {
 public:
  /// `options` are valid. `prompt`, ids of the model, counts for the repetition penalty.
  Sampler(SamplingOptions options, std::span<const std::int32_t> prompt);

  /// The next token, which then counts for the penalties. logits [n] f32: of the ids that may be taken, which are the
  /// first n of the vocabulary; of ids from n on neither bias nor penalty matters. Throws Error(tensor) for a logit
  /// that is not finite.
  std::int32_t next(std::span<const float> logits);

 private:
  struct Candidate {
    double logit;  // after bias and penalties
    double weight;
    std::int32_t id;
  };
  static bool is_before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }

  void adjust(std::span<const float> logits);
  [[nodiscard]] std::int32_t draw();
  void keep_top_k();
  void keep_top_p();
  [[nodiscard]] double sum_of_weights() const;

  SamplingOptions options_;
  bool has_penalties_;
  std::unordered_map<std::int32_t, std::int64_t> n_seen_;  // in the answer; 0: in the prompt alone
  std::vector<Candidate> candidates_;                      // by rising id; kept from token to token for its memory
  std::uint64_t n_draws_ = 0;
};

}  // namespace kalibri::runtime
