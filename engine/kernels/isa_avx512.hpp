// The vector operations of AVX-512 (F, BW, DQ, VL): 16 lanes. What each must do is written in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include "engine/kernels/isa_macros.hpp"

namespace kalibri::kernels {
namespace {

using Vector = __m512;
constexpr int kWidth = 16;
constexpr int kVectors = 32 / kWidth;
constexpr int kRowTile = 6;  // 6 x 4 sums, 6 weights and an activation fit the 32 registers

KALIBRI_INLINE Vector zero() { return _mm512_setzero_ps(); }
KALIBRI_INLINE Vector splat(float value) { return _mm512_set1_ps(value); }
KALIBRI_INLINE Vector load(const float* p) { return _mm512_loadu_ps(p); }
KALIBRI_INLINE void store(float* p, Vector a) { _mm512_storeu_ps(p, a); }

KALIBRI_INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
KALIBRI_INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
KALIBRI_INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
KALIBRI_INLINE Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
KALIBRI_INLINE Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
KALIBRI_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
KALIBRI_INLINE Vector negate(Vector a) { return _mm512_xor_ps(a, splat(-0.0F)); }

KALIBRI_INLINE Vector where_less(Vector a, Vector b, Vector then, Vector otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
}
KALIBRI_INLINE Vector where_nan(Vector a, Vector then, Vector otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), otherwise, then);
}
KALIBRI_INLINE Vector times_power_of_two(Vector a, Vector shifted) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

struct Pair {
  Vector even, odd;
};

KALIBRI_INLINE Pair load_f32(const unsigned char* p) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const Vector a = _mm512_loadu_ps(p);
  const Vector b = _mm512_loadu_ps(p + 64);
  return {_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)};
}

KALIBRI_INLINE Pair from_bf16_words(__m512i words) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
}

KALIBRI_INLINE Pair load_bf16(const unsigned char* p) { return from_bf16_words(_mm512_loadu_si512(p)); }

KALIBRI_INLINE Pair load_e4m3(const unsigned char* p) {
  const __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return from_bf16_words(_mm512_and_si512(_mm512_slli_epi16(codes, 4), _mm512_set1_epi16(static_cast<short>(0x87f0))));
}

/// Lanes 0 2 .. 14 | 1 3 .. 15 of the sums that are left after the step h = 16.
KALIBRI_INLINE Vector fold_even_odd(const Vector* s) {
  return add(_mm512_shuffle_f32x4(s[0], s[1], 0x44), _mm512_shuffle_f32x4(s[0], s[1], 0xee));
}
KALIBRI_INLINE Vector fold(const Vector* s) {
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  return _mm512_permutexvar_ps(order, add(s[0], s[1]));
}

KALIBRI_INLINE Vector tree(const Vector* folded) {
  const auto quarters = [](Vector a, Vector b) {  // the quarters a0 a2 b0 b2 + a1 a3 b1 b3
    return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const auto low_high = [](Vector a, Vector b) {  // a0 a1 b0 b1 + a2 a3 b2 b3 of each quarter
    const __m512d x = _mm512_castps_pd(a);
    const __m512d y = _mm512_castps_pd(b);
    return add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  };
  const auto even_odd = [](Vector a, Vector b) {  // a0 a2 b0 b2 + a1 a3 b1 b3 of each quarter
    return add(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  };
  // Rows i and i + 4 share a vector so that the rows come out in order.
  const auto eight = [&](const Vector* f) {
    return even_odd(low_high(quarters(f[0], f[4]), quarters(f[1], f[5])),
                    low_high(quarters(f[2], f[6]), quarters(f[3], f[7])));
  };
  return quarters(eight(folded), eight(folded + 8));
}

}  // namespace
}  // namespace kalibri::kernels
