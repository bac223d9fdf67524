// The constants behind every bound, in one place, each with its reason. A bound is a multiple of a measured floor: how
// far the reference's own fp32 lies from its fp64.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace kalibri::oracle {

/// Row errors, chained logits and router gaps: bound = kKappa * floor. Candidate and reference round independently, so
/// their distance is at most about two floors; the rest is room for another order of summation. Measured
/// on the golden sets of Kolibri 1 (120 runs: four sets, random prompts of 1 to 100 tokens, weights expanded and in
/// place): noise reaches 2.0 floors (alone scalars of a single token, which fill_in() steadies, had
/// reached 4.7). The smallest deliberate defect (engine/kernels/mutation.hpp) stands at 5.9 floors (FP8 subnormals
/// flushed, on k1-fp8, where the outputs hide it), the next at 21.
inline constexpr double kKappa = 4;

/// Chained KL: bound = kLambda * floor. KL is quadratic in the logits' error. In the same runs noise reaches 3.9
/// floors; the smallest defect stands at 26 by kl_max and 15.8 by kl_mean.
inline constexpr double kLambda = 10;

/// No floor of a relative error is below two fp32 roundings, 2 * 2^-24: a tensor of few rows can be exact by luck.
inline constexpr double kLeastFloor = 0x1p-23;

/// A bound of a relative error above this is no proof: the bound of the published Kolibri 1 verification for fp32
/// (--max-rel). A floor that asks for more is mistrusted, because reference and fp64 then differ by more than rounding.
inline constexpr double kLoosestBound = 1e-3;

/// The same for a floor of a precision that rounds: such a bound tells that a candidate loses no more than the
/// reference does by the same rounding, not that its formulas are right, which only f32 arithmetic shows. Above it the
/// two need not even resemble each other. Measured where no expert changes (golden sets and nano models, each layer
/// alone): floors of 3e-3 to 2e-2 with every result rounded to bf16, to 5e-2 with activations in FP8 as well.
inline constexpr double kLoosestRoundedBound = 0.25;

/// What float64 arithmetic alone can make of the KL of two equal distributions over n_vocab entries. With u = 2^-53:
/// each ln p is a difference of a logit and the log-sum-exp, off by at most 2 u (|ln p| + 1) on either side, so their
/// weighted sum is off by at most 4 u (entropy + 1) <= 4 u (ln n_vocab + 1); its own summation adds the same again.
double kl_rounding(std::int64_t n_vocab);

/// For a report: the constants and a sentence on what they mean.
nlohmann::json rules_json();

}  // namespace kalibri::oracle
