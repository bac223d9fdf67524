// What this machine can do at most: the ceilings of products with one token and with many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kalibri::kernels::bench {

/// Does n rounds of independent fused multiply-adds with the vectors of the table called `isa`; returns the floating
/// point operations done, 0 for a table without vectors.
double run_fma_chains(std::string_view isa, std::int64_t n);

/// Sum of the 64-bit words of n_bytes at `data` (whole multiples of 256): nothing reads memory faster.
std::uint64_t read_sum(const unsigned char* data, std::size_t n_bytes);

}  // namespace kalibri::kernels::bench
