// Whether the candidate's numbers are rounded to bf16 where the reference's are, and nowhere else: a check that needs
// no floor.
#pragma once

#include "oracle/compare/dump_difference.hpp"

namespace kalibri::oracle {

/// One finding, CHECK/rounding, over the floating tensors of each layer in all prompts: where all of the reference's
/// numbers are bf16's, all of the candidate's must be; where they are not, at least half as many of the candidate's as
/// of the reference's must need more. A tensor with less than kTellingNumbers telling numbers shows nothing.
Finding rounding_finding(const DumpDifference& difference);

}  // namespace kalibri::oracle
