// The vector operations of AVX2 and FMA: 8 lanes. What each must do is written in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include "engine/kernels/isa_macros.hpp"

namespace kalibri::kernels {
namespace {

using Vector = __m256;
constexpr int kWidth = 8;
constexpr int kVectors = 32 / kWidth;
constexpr int kRowTile = 3;  // 3 x 4 sums, 3 weights and an activation fill the 16 registers

KALIBRI_INLINE Vector zero() { return _mm256_setzero_ps(); }
KALIBRI_INLINE Vector splat(float value) { return _mm256_set1_ps(value); }
KALIBRI_INLINE Vector load(const float* p) { return _mm256_loadu_ps(p); }
KALIBRI_INLINE void store(float* p, Vector a) { _mm256_storeu_ps(p, a); }

KALIBRI_INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
KALIBRI_INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
KALIBRI_INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
KALIBRI_INLINE Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
KALIBRI_INLINE Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
KALIBRI_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
KALIBRI_INLINE Vector negate(Vector a) { return _mm256_xor_ps(a, splat(-0.0F)); }

KALIBRI_INLINE Vector where_less(Vector a, Vector b, Vector then, Vector otherwise) {
  return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
KALIBRI_INLINE Vector where_nan(Vector a, Vector then, Vector otherwise) {
  return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
KALIBRI_INLINE Vector times_power_of_two(Vector a, Vector shifted) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

struct Pair {
  Vector even, odd;
};

KALIBRI_INLINE Pair load_f32(const unsigned char* p) {
  const Vector a = _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const Vector b = _mm256_loadu_ps(reinterpret_cast<const float*>(p + 32));
  const auto in_order = [](Vector v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8)); };
  return {in_order(_mm256_shuffle_ps(a, b, 0x88)), in_order(_mm256_shuffle_ps(a, b, 0xdd))};
}

KALIBRI_INLINE Pair from_bf16_words(__m256i words) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000U))))};
}

KALIBRI_INLINE Pair load_bf16(const unsigned char* p) {
  return from_bf16_words(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

KALIBRI_INLINE Pair load_e4m3(const unsigned char* p) {
  const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return from_bf16_words(_mm256_and_si256(_mm256_slli_epi16(codes, 4), _mm256_set1_epi16(static_cast<short>(0x87f0))));
}

/// Lanes 0 2 4 6 | 1 3 5 7 of the sums that are left after the steps h = 16 and 8.
KALIBRI_INLINE Vector fold_even_odd(const Vector* s) {
  const Vector even = add(s[0], s[2]);
  const Vector odd = add(s[1], s[3]);
  return add(_mm256_permute2f128_ps(even, odd, 0x20), _mm256_permute2f128_ps(even, odd, 0x31));
}
KALIBRI_INLINE Vector fold(const Vector* s) {
  const Vector sums = add(add(s[0], s[2]), add(s[1], s[3]));
  return _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

KALIBRI_INLINE Vector tree(const Vector* folded) {
  const auto low_high = [](Vector a, Vector b) {  // a0 a1 b0 b1 + a2 a3 b2 b3 of each half
    const __m256d x = _mm256_castps_pd(a);
    const __m256d y = _mm256_castps_pd(b);
    return add(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  };
  const auto even_odd = [](Vector a, Vector b) {  // a0 a2 b0 b2 + a1 a3 b1 b3 of each half
    return add(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  };
  const Vector a = even_odd(low_high(folded[0], folded[1]), low_high(folded[2], folded[3]));
  const Vector b = even_odd(low_high(folded[4], folded[5]), low_high(folded[6], folded[7]));
  return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

}  // namespace
}  // namespace kalibri::kernels
