// The vector operations of AVX2, FMA and F16C: 8 lanes. What each must do is written in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "engine/kernels/isa_codes_x86.hpp"
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

KALIBRI_INLINE Vector load_f32(const unsigned char* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
KALIBRI_INLINE Vector load_bf16(const unsigned char* p) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

KALIBRI_INLINE void load_e4m3(const unsigned char* p, Vector* v) {
  const __m128i mask = _mm_set1_epi16(static_cast<short>(0xbf80));
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) {
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kWidth)));
    v[i] = _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(codes, 7), mask));
  }
}

// Without a conversion: sign to bit 31, exponent and mantissa to bits 26..20, first in 16-bit halves. A subnormal code
// then is a subnormal operand, which AMD's processors multiply at full speed; on Intel's without AVX-512 the few of a
// real matrix cost some per cent.
constexpr float kStreamScale = 0x1p-112F;
constexpr int kStreamE4m3Parts = 4;
KALIBRI_INLINE void stream_e4m3(const unsigned char* p, Vector* v) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i mask = _mm256_set1_epi16(static_cast<short>(0x87f0));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
  const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 4), mask);
  const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(codes, 4), mask);
  v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(even, 16));
  v[1] = _mm256_castsi256_ps(_mm256_slli_epi32(odd, 16));
  v[2] = _mm256_castsi256_ps(_mm256_and_si256(even, high));
  v[3] = _mm256_castsi256_ps(_mm256_and_si256(odd, high));
}

/// The even and the odd columns of a and b, which are 16 in order; and back.
KALIBRI_INLINE void split_pair(Vector* a, Vector* b) {
  const auto in_order = [](__m256 lanes) {  // a0 a1 b0 b1 a2 a3 b2 b3 to a0 a1 a2 a3 b0 b1 b2 b3
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(lanes), 0xd8));
  };
  const Vector even = in_order(_mm256_shuffle_ps(*a, *b, 0x88));
  *b = in_order(_mm256_shuffle_ps(*a, *b, 0xdd));
  *a = even;
}
KALIBRI_INLINE void join_pair(Vector* even, Vector* odd) {
  const Vector low = _mm256_unpacklo_ps(*even, *odd);
  const Vector high = _mm256_unpackhi_ps(*even, *odd);
  *even = _mm256_permute2f128_ps(low, high, 0x20);
  *odd = _mm256_permute2f128_ps(low, high, 0x31);
}
template <int kParts>
KALIBRI_INLINE void split(Vector* v) {
  if constexpr (kParts > 1) {
    split_pair(&v[0], &v[1]);
    split_pair(&v[2], &v[3]);
  }
  if constexpr (kParts == 4) {
    split_pair(&v[0], &v[2]);
    split_pair(&v[1], &v[3]);
  }
}
template <int kParts>
KALIBRI_INLINE void join(Vector* v) {
  if constexpr (kParts == 4) {
    join_pair(&v[0], &v[2]);
    join_pair(&v[1], &v[3]);
  }
  if constexpr (kParts > 1) {
    join_pair(&v[0], &v[1]);
    join_pair(&v[2], &v[3]);
  }
}

KALIBRI_INLINE Vector splat_f32(const unsigned char* p) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
}

template <int kBits>
KALIBRI_INLINE void load_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  v[0] = fma(_mm256_cvtepi32_ps(eight_codes<kBits, 0>(p)), scale, bias);
  v[1] = fma(_mm256_cvtepi32_ps(eight_codes<kBits, 1>(p)), scale, bias);
  v[2] = fma(_mm256_cvtepi32_ps(eight_codes<kBits, 2>(p)), scale, bias);
  v[3] = fma(_mm256_cvtepi32_ps(eight_codes<kBits, 3>(p)), scale, bias);
}

// The low nibbles of 8 bytes are the even columns, the high ones the odd columns.
template <int kBits>
constexpr int kStreamAffineParts = kBits == 4 ? 2 : 1;
template <int kBits>
KALIBRI_INLINE void stream_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  if constexpr (kBits != 4) {
    load_affine<kBits>(p, scale, bias, v);
  } else {
    KALIBRI_UNROLL for (int i = 0; i < kVectors; i += 2) {
      const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 4 * i)));
      v[i] = fma(_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(0x0f))), scale, bias);
      v[i + 1] = fma(_mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4)), scale, bias);
    }
  }
}
using Words = __m256i;
template <int kBits>
KALIBRI_INLINE Words load_words(const unsigned char* p) {
  return load_eight_words<kBits>(p);
}
KALIBRI_INLINE Words as_words(Vector a) { return _mm256_castps_si256(a); }
KALIBRI_INLINE Vector as_vector(Words a) { return _mm256_castsi256_ps(a); }
KALIBRI_INLINE Words zero_words() { return _mm256_setzero_si256(); }
KALIBRI_INLINE Words splat_pair(const unsigned char* p) { return as_words(splat_f32(p)); }
KALIBRI_INLINE Vector to_floats(Words a) { return _mm256_cvtepi32_ps(a); }

KALIBRI_INLINE void transpose(Words* rows) {
  Words quads[2][4];  // column 4 L + j of four rows in half L of quads[.][j]
  KALIBRI_UNROLL for (int q = 0; q < 2; ++q) {
    const Words* r = rows + 4 * q;
    const Words low[2] = {_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpacklo_epi32(r[2], r[3])};
    const Words high[2] = {_mm256_unpackhi_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[2], r[3])};
    quads[q][0] = _mm256_unpacklo_epi64(low[0], low[1]);
    quads[q][1] = _mm256_unpackhi_epi64(low[0], low[1]);
    quads[q][2] = _mm256_unpacklo_epi64(high[0], high[1]);
    quads[q][3] = _mm256_unpackhi_epi64(high[0], high[1]);
  }
  KALIBRI_UNROLL for (int j = 0; j < 4; ++j) {
    rows[j] = _mm256_permute2x128_si256(quads[0][j], quads[1][j], 0x20);
    rows[4 + j] = _mm256_permute2x128_si256(quads[0][j], quads[1][j], 0x31);
  }
}

KALIBRI_INLINE Vector fold(const Vector* s) { return add(add(s[0], s[2]), add(s[1], s[3])); }

KALIBRI_INLINE Vector tree(const Vector* folded) {
  const auto halves = [](Vector a, Vector b) {  // the halves a0 b0 + a1 b1
    return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  const auto low_high = [](Vector a, Vector b) {  // a0 a1 b0 b1 + a2 a3 b2 b3 of each half
    const __m256d x = _mm256_castps_pd(a);
    const __m256d y = _mm256_castps_pd(b);
    return add(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  };
  const auto even_odd = [](Vector a, Vector b) {  // a0 a2 b0 b2 + a1 a3 b1 b3 of each half
    return add(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  };
  // Products i and i + 4 share a vector so that the sums come out in order.
  return even_odd(low_high(halves(folded[0], folded[4]), halves(folded[1], folded[5])),
                  low_high(halves(folded[2], folded[6]), halves(folded[3], folded[7])));
}

}  // namespace
}  // namespace kalibri::kernels
