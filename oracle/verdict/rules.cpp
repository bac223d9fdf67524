#include "oracle/verdict/rules.hpp"

#include <fmt/format.h>

#include <cmath>

namespace kalibri::oracle {

double kl_rounding(std::int64_t n_vocab) { return 8 * 0x1p-53 * (std::log(static_cast<double>(n_vocab)) + 1); }

nlohmann::json rules_json() {
  return {
      {"kappa", kKappa},
      {"lambda", kLambda},
      {"least_floor", kLeastFloor},
      {"loosest_bound", kLoosestBound},
      {"text",
       fmt::format(
           "Bounds are multiples of measured floors: {} x the largest row error between the reference in fp32 and in "
           "fp64 on the same inputs (never below 2^-23), {} x the chained KL of the two; for an engine whose precision "
           "rounds results, the reference in that precision takes the place of fp64. Tokens whose experts or "
           "blocks "
           "differ between the two are left out of the floors and counted. A differing choice is excused only as a "
           "tie: the k-th expert alone is exchanged and the reference's gap at the cut is at most {} x the gap's own "
           "floor; or the exchanged blocks' scores lie within {} x the scores' floor. Decode and prefill of one engine "
           "must agree in every bit.",
           kKappa, kLambda, kKappa, kKappa)}};
}

}  // namespace kalibri::oracle
