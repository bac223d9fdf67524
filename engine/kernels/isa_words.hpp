// How packed integer codes lie in memory and in 32-bit words, for every ISA alike. Codes of 3, 5 and 6 bits are widened
// to 8 when they are loaded. Pair k of a word stands in two 16-bit halves: its codes k and k + kPairs.
#pragma once

#include <cstdint>

#include "engine/kernels/isa_macros.hpp"

namespace kalibri::kernels {
namespace {

template <int kBits>
constexpr int kWordBits = kBits == 2 || kBits == 4 ? kBits : 8;

template <int kBits>
constexpr int kPairs = 16 / kWordBits<kBits>;

template <int kBits>
constexpr int kPairMask = ((1 << kWordBits<kBits>)-1) * 0x10001;

/// Bytes of n words as they are stored.
template <int kBits>
constexpr int word_bytes(int n) {
  return n * 4 * kBits / kWordBits<kBits>;
}

/// Of a step of 32 codes: where kWindow bytes begin that have the kBits bytes of eight codes from code 8 i on, all of
/// them bytes of the step.
template <int kBits, int kWindow>
constexpr int window_of_eight(int i) {
  return i * kBits < 4 * kBits - kWindow ? i * kBits : 4 * kBits - kWindow;
}
template <int kBits, int kWindow>
KALIBRI_INLINE std::uint64_t load_window(const unsigned char* p, int i) {
  std::uint64_t window = 0;
  __builtin_memcpy(&window, p + window_of_eight<kBits, kWindow>(i), kWindow);
  return window;
}

}  // namespace
}  // namespace kalibri::kernels
