// Position bands: where in a prompt prefill and decode differ from the reference, each band with a bound of its own.
#pragma once

#include <cstdint>

#include "oracle/verdict/judge_logits.hpp"

namespace kalibri::oracle {

/// bands_of_prompt() (compare/bands.hpp) of every prompt of `difference` (reference against the chained
/// candidate), and the findings bands/prefill and bands/decode (schedule "bands" of `decoded`, may be null): the mean
/// KL of a band within kLambda times the largest KL that the reference's fp32 has against its fp64 in that band.
/// Without `floor` (chained): mistrusted.
Judged judge_bands(const dump::Reader& reference, const DumpDifference& difference, const dump::Reader* decoded,
                   const MeasuredFloor* floor, std::int64_t window);

}  // namespace kalibri::oracle
