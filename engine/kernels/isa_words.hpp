// How packed integer codes lie in 32-bit words, for every ISA alike. Codes of 3, 5 and 6 bits are widened to 8 when
// they are loaded. Pair k of a word stands in two 16-bit halves: its codes k and k + kPairs.
#pragma once

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

}  // namespace
}  // namespace kalibri::kernels
