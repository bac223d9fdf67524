// Packed integer codes and their exact products, in AVX2's registers: for both x86 tables, since memory is what bounds
// them. What each operation must do is written in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "engine/kernels/isa_macros.hpp"

namespace kalibri::kernels {
namespace {

template <int kBits>
KALIBRI_INLINE __m256i eight_codes(const unsigned char* p) {
  const __m256i mask = _mm256_set1_epi32((1 << kBits) - 1);
  if constexpr (kBits == 8) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  } else if constexpr (kBits <= 4) {
    std::uint32_t word = 0;
    __builtin_memcpy(&word, p, kBits);
    const __m256i shifts = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(kBits));
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(word)), shifts), mask);
  } else {
    std::uint64_t word = 0;
    __builtin_memcpy(&word, p, kBits);
    const __m256i words = _mm256_set1_epi64x(static_cast<long long>(word));
    const __m256i a = _mm256_srlv_epi64(words, _mm256_setr_epi64x(0, kBits, 4 * kBits, 5 * kBits));
    const __m256i b = _mm256_srlv_epi64(words, _mm256_setr_epi64x(2 * kBits, 3 * kBits, 6 * kBits, 7 * kBits));
    const __m256 low_halves = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
    return _mm256_and_si256(_mm256_castps_si256(low_halves), mask);
  }
}

struct Codes {
  __m256i low, high;
};
using CodeSums = __m256i;

template <int kBits>
KALIBRI_INLINE Codes load_codes(const unsigned char* p) {
  if constexpr (kBits == 8) {
    return {_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
  } else if constexpr (kBits == 4) {
    const __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_and_si256(pairs, _mm256_set1_epi16(15)), _mm256_srli_epi16(pairs, 4)};
  } else {
    const auto sixteen = [](const unsigned char* from) {
      const __m256i halves = _mm256_packus_epi32(eight_codes<kBits>(from), eight_codes<kBits>(from + kBits));
      return _mm256_permute4x64_epi64(halves, 0xd8);
    };
    return {sixteen(p), sixteen(p + 2 * kBits)};
  }
}

KALIBRI_INLINE CodeSums zero_code_sums() { return _mm256_setzero_si256(); }

KALIBRI_INLINE CodeSums multiply_codes(const Codes& w, const unsigned char* x, CodeSums sums) {
  const auto* words = reinterpret_cast<const __m256i*>(x);
  const __m256i low = _mm256_madd_epi16(w.low, _mm256_loadu_si256(words));
  const __m256i high = _mm256_madd_epi16(w.high, _mm256_loadu_si256(words + 1));
  return _mm256_add_epi32(sums, _mm256_add_epi32(low, high));
}

KALIBRI_INLINE void store_totals(const CodeSums* s, std::int32_t* totals) {
  const auto pairs = [](__m256i a, __m256i b) { return _mm256_hadd_epi32(a, b); };
  const __m256i low = pairs(pairs(s[0], s[1]), pairs(s[2], s[3]));
  const __m256i high = pairs(pairs(s[4], s[5]), pairs(s[6], s[7]));
  const __m256i result =
      _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(totals), result);
}

}  // namespace
}  // namespace kalibri::kernels
