// Whether most rows are as near as the reference's own sums leave them: the sharp check where a precision rounds.
#pragma once

#include <string>
#include <vector>

#include "oracle/verdict/judge_layers.hpp"

namespace kalibri::oracle {

/// One finding, CHECK/typical, of a teacher-forced comparison: of each layer and tensor, what three quarters of the
/// candidate's rows are off by or more, within kKappa times what three quarters of the reference's own rows stay
/// within. Groups of less than kTypicalRows rows are not judged, nor, where the precision rounds, those that one prompt
/// decides by itself: a single number on the other side of a rounding may move all tokens that come after. Mistrusted
/// when nothing is left to judge and the largest errors that the precision allows prove nothing.
Finding typical_finding(const DumpDifference& difference, const std::vector<JudgedLayer>& layers, const Floor* floor);

}  // namespace kalibri::oracle
