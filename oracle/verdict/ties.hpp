// Tokens whose expert sets differ: which differences are ties, which follow from an earlier one, and which rows of what
// comes after cannot be judged because of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oracle/verdict/floor.hpp"

namespace kalibri::oracle {

/// One prompt's differing tokens in one layer.
struct LayerTies {
  std::vector<bool> left_out;  // [T] rows that are not judged after the router; empty: all are judged
  std::int64_t n_excused = 0;
  double largest_gap_excused = 0;
  std::int64_t n_following = 0;      // chained: differing after an earlier difference in an earlier layer
  std::vector<std::int64_t> faults;  // positions that differ and are no tie
};

/// Judges the differing tokens of each layer of `prompt`, in the order of its layers. A difference is excused when it
/// is a single swap at the cut and the reference's gap there is at most kKappa times the gap's floor. In a chained run,
/// a token after (or at) a token that differed in an earlier layer has other inputs: it is counted as following, not
/// judged.
std::vector<LayerTies> judge_ties(const PromptDifference& prompt, const Floor* floor, RunMode mode);

/// The first position from which on a chained run's outputs cannot be judged: that of the first differing token; T when
/// none differs.
std::int64_t first_differing_token(const PromptDifference& prompt);

/// Whether `tensor` of a layer is computed after its experts were chosen.
bool is_after_router(const std::string& tensor);

}  // namespace kalibri::oracle
