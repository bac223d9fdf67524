// The constants behind every bound, in one place, each with its reason. A bound is a multiple of a measured floor: how
// far the reference's own fp32 lies from its fp64, in the same precision. Where the precision rounds, both round at the
// same places, and what differs is the sums between: nearly all numbers come out the same, and the few that fell on the
// other side of a rounding move what is computed from them.
#pragma once

#include <cstddef>
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

/// The same where the precision rounds, of what three quarters of the rows stay within: each layer alone, and chained,
/// where numbers on the other side of a rounding add up over the layers. Measured on eight models (golden sets, nano
/// models) in bf16, production, single rounding keys and integers: such bounds reach 0.044 and 0.22. A row's largest
/// error may be as large as any noise of the format and proves nothing by itself; what most rows show does.
inline constexpr double kLoosestRoundedBound = 0.0625;
inline constexpr double kLoosestRoundedChainedBound = 0.25;

/// Rows that a quartile is taken of, at least: of fewer, too few are left in a quarter.
inline constexpr std::size_t kTypicalRows = 16;

/// Numbers that show whether a tensor is rounded to bf16, at least: that so many others look so by chance has a
/// probability of 2^-128.
inline constexpr std::int64_t kTellingNumbers = 8;

/// What float64 arithmetic alone can make of the KL of two equal distributions over n_vocab entries. With u = 2^-53:
/// each ln p is a difference of a logit and the log-sum-exp, off by at most 2 u (|ln p| + 1) on either side, so their
/// weighted sum is off by at most 4 u (entropy + 1) <= 4 u (ln n_vocab + 1); its own summation adds the same again.
double kl_rounding(std::int64_t n_vocab);

/// For a report: the constants and a sentence on what they mean.
nlohmann::json rules_json();

}  // namespace kalibri::oracle
