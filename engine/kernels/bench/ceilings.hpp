// What this machine can do at most: the ceiling of products with many tokens.
#pragma once

#include <cstdint>
#include <string_view>

namespace kalibri::kernels::bench {

/// Does n rounds of independent fused multiply-adds with the vectors of the table called `isa`; returns the floating
/// point operations done, 0 for a table without vectors.
double run_fma_chains(std::string_view isa, std::int64_t n);

}  // namespace kalibri::kernels::bench
