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
      {"loosest_rounded_bound", kLoosestRoundedBound},
      {"loosest_rounded_chained_bound", kLoosestRoundedChainedBound},
      {"text",
       fmt::format(
           "Bounds are multiples of measured floors: {} x the largest row error between the reference in fp32 and in "
           "fp64 on the same inputs and in the same precision (never below 2^-23), {} x the chained KL of the two. "
           "Typical: what three quarters of a tensor's rows are off by or more, within {} x what three quarters stay "
           "within between the two. Where the precision rounds results, a number may fall on the other side of a "
           "rounding: the largest row error counts over all layers and never below a row rounded the other way (bf16 "
           "2^-8, int8 2^-6, e4m3 2^-4, int16 2^-14). Tokens whose experts or blocks "
           "differ between the two are left out of the floors and counted. A differing choice is excused only as a "
           "tie: the k-th expert alone is exchanged (where the precision rounds, any) and the reference's gap at the "
           "cut is at most {} x the gap's own "
           "floor; or the exchanged blocks' scores lie within {} x the scores' floor. Decode and prefill of one engine "
           "must agree in every bit.",
           kKappa, kLambda, kKappa, kKappa, kKappa)}};
}

}  // namespace kalibri::oracle
