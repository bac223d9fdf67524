// Reading and nothing else: how fast memory can be read is what bounds products with one token.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kalibri::kernels {

/// Sum of the 64-bit words at `data` (any address), of n_bytes rounded down to a multiple of 256, with the widest reads
/// of up to 32 bytes that the processor has: nothing was found that reads memory faster.
std::uint64_t read_sum(const unsigned char* data, std::size_t n_bytes);

}  // namespace kalibri::kernels
