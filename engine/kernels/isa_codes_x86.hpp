// Packed integer codes and their exact products, in AVX2's registers: for both x86 tables, since memory is what bounds
// them. What each operation must do is written in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/kernels/isa_macros.hpp"
#include "engine/kernels/isa_words.hpp"

namespace kalibri::kernels {
namespace {

/// Byte shuffles that bring codes of 5 or 6 bits, which lie one after the other from byte kFirst on, into words: the
/// two bytes in which each begins and ends, and by how much these are then to be shifted.
template <int kBits, int kFirst, int kCodes>
struct CodePlaces {
  alignas(64) unsigned char bytes[std::size_t{4 * kCodes}] = {};
  alignas(64) std::int32_t shifts[std::size_t{kCodes}] = {};
  constexpr CodePlaces() {
    for (int k = 0; k < kCodes; ++k) {
      bytes[4 * k] = static_cast<unsigned char>(kFirst + k * kBits / 8);
      bytes[4 * k + 1] = static_cast<unsigned char>(kFirst + (k * kBits + kBits - 1) / 8);
      bytes[4 * k + 2] = bytes[4 * k + 3] = 0x80;  // zero
      shifts[k] = k * kBits % 8;
    }
  }
};
template <int kBits, int kFirst, int kCodes>
constexpr CodePlaces<kBits, kFirst, kCodes> kCodePlaces = {};

/// Codes 8 i to 8 i + 7 of the step at p.
template <int kBits, int i>
KALIBRI_INLINE __m256i eight_codes(const unsigned char* p) {
  const __m256i mask = _mm256_set1_epi32((1 << kBits) - 1);
  if constexpr (kBits == 8) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i)));
  } else if constexpr (kBits <= 4) {
    constexpr int kSkipped = 8 * (i * kBits - window_of_eight<kBits, 4>(i));
    const __m256i words = _mm256_set1_epi32(static_cast<int>(load_window<kBits, 4>(p, i)));
    const __m256i shifts =
        _mm256_setr_epi32(kSkipped, kSkipped + kBits, kSkipped + 2 * kBits, kSkipped + 3 * kBits, kSkipped + 4 * kBits,
                          kSkipped + 5 * kBits, kSkipped + 6 * kBits, kSkipped + 7 * kBits);
    return _mm256_and_si256(_mm256_srlv_epi32(words, shifts), mask);
  } else {
    const auto& places = kCodePlaces<kBits, i * kBits - window_of_eight<kBits, 8>(i), 8>;
    const __m256i words = _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<long long>(load_window<kBits, 8>(p, i))),
                                              _mm256_load_si256(reinterpret_cast<const __m256i*>(places.bytes)));
    const __m256i shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(places.shifts));
    return _mm256_and_si256(_mm256_srlv_epi32(words, shifts), mask);
  }
}

template <int kBits>
KALIBRI_INLINE __m256i load_eight_words(const unsigned char* p) {
  if constexpr (kBits == kWordBits<kBits>) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  } else {
    const __m256i low = _mm256_packus_epi32(eight_codes<kBits, 0>(p), eight_codes<kBits, 1>(p));
    const __m256i high = _mm256_packus_epi32(eight_codes<kBits, 2>(p), eight_codes<kBits, 3>(p));
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
}
/// The others are zero.
template <int kBits, int kWords>
KALIBRI_INLINE __m256i load_some_words(const unsigned char* p) {
  if constexpr (kWords == 8) {
    return load_eight_words<kBits>(p);
  } else if constexpr (kWords == 4) {
    return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  } else {
    return _mm256_zextsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
}

template <int kBits>
KALIBRI_INLINE __m256i code_pairs(__m256i words, int k) {
  const __m256i shifted = k == 0 ? words : _mm256_srli_epi16(words, kWordBits<kBits> * k);
  return k == kPairs<kBits> - 1 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi32(kPairMask<kBits>));
}
KALIBRI_INLINE __m256i multiply_pairs(__m256i a, __m256i b, __m256i sums) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}

using CodeSums = __m256i;
KALIBRI_INLINE CodeSums zero_code_sums() { return _mm256_setzero_si256(); }

template <int kBits, int kWords>
KALIBRI_INLINE CodeSums multiply_words(const unsigned char* w, const unsigned char* x, CodeSums sums) {
  const __m256i words = load_some_words<kBits, kWords>(w);
  KALIBRI_UNROLL for (int k = 0; k < kPairs<kBits>; ++k) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k * kWords * 4));
    sums = multiply_pairs(code_pairs<kBits>(words, k), pairs, sums);
  }
  return sums;
}

template <int kGridBytes>
KALIBRI_INLINE __m256 load_eight_of_grid(const unsigned char* p) {
  if constexpr (kGridBytes == 4) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  } else {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
}
template <int kGridBytes>
KALIBRI_INLINE void add_eight_groups(const CodeSums* s, const unsigned char* scales, const unsigned char* biases,
                                     const unsigned char* a, const unsigned char* scaled_sums, float* sums) {
  const auto pairs = [](__m256i x, __m256i y) { return _mm256_hadd_epi32(x, y); };
  const __m256i low = pairs(pairs(s[0], s[1]), pairs(s[2], s[3]));
  const __m256i high = pairs(pairs(s[4], s[5]), pairs(s[6], s[7]));
  const __m256i totals =
      _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
  const __m256 scale = _mm256_mul_ps(load_eight_of_grid<kGridBytes>(scales), load_eight_of_grid<4>(a));
  const __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(totals), scale, _mm256_loadu_ps(sums));
  _mm256_storeu_ps(sums,
                   _mm256_fmadd_ps(load_eight_of_grid<kGridBytes>(biases), load_eight_of_grid<4>(scaled_sums), sum));
}

}  // namespace
}  // namespace kalibri::kernels
