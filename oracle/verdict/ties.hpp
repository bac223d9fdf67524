// Tokens whose experts or blocks differ: which differences are ties, which follow from an earlier one, and which rows
// of what comes after cannot be judged because of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oracle/verdict/floor.hpp"

namespace kalibri::oracle {

/// The differing tokens of one choice (of experts, of blocks) in one layer and prompt. Positions ascend.
struct ChoiceTies {
  std::vector<std::int64_t> excused;  // ties
  double largest_gap_excused = 0;
  std::int64_t n_following = 0;      // with other inputs, because an earlier choice differs
  std::vector<std::int64_t> faults;  // no ties
};

struct LayerTies {
  ChoiceTies blocks, experts;

  /// [n_tokens] rows of `tensor` that are not judged, because they come after an excused tie of their token; empty:
  /// all are judged.
  [[nodiscard]] std::vector<bool> left_out(const std::string& tensor, std::int64_t n_tokens) const;
};

/// Judges the differing tokens of each layer of `prompt`, in the order of its layers. Experts: excused when a single
/// one is exchanged at the cut (where the precision rounds, any) and the reference's gap there is at most kKappa times
/// the gap's floor. Blocks: excused
/// when the reference's scores set the exchanged ones apart by at most kKappa times the scores' floor (relu makes equal
/// scores of many blocks common, so several may be exchanged). Experts of a token whose blocks differ have other
/// inputs; in a chained run, so has a token after (or at) one that differed in an earlier layer: counted as following,
/// not judged.
std::vector<LayerTies> judge_ties(const PromptDifference& prompt, const Floor* floor, RunMode mode);

/// The largest gap between exchanged blocks that is a tie; 0 without a floor: then only equal scores are.
double block_noise(const Floor* floor, std::int64_t layer);

/// [T] tokens whose row of `tensor` has other inputs on the two sides because a choice before it in this layer differs.
std::vector<bool> rows_after_differing(const LayerDifference& layer, const std::string& tensor, std::int64_t n_tokens);

/// The first position from which on a chained run's outputs cannot be judged: that of the first differing token; T when
/// none differs.
std::int64_t first_differing_token(const PromptDifference& prompt);
/// The same of the choices in layers before `layer`.
std::int64_t first_differing_before(const PromptDifference& prompt, std::int64_t layer);

}  // namespace kalibri::oracle
