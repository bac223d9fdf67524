// The vector operations of AVX-512 (F, BW, DQ, VL): 16 lanes. What each must do is written in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "engine/kernels/isa_codes_x86.hpp"
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

KALIBRI_INLINE Vector load_f32(const unsigned char* p) { return _mm512_loadu_ps(p); }
KALIBRI_INLINE Vector load_bf16(const unsigned char* p) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

KALIBRI_INLINE void load_e4m3(const unsigned char* p, Vector* v) {
  const __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i mask = _mm512_set1_epi16(static_cast<short>(0xbf80));
  const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(codes, 7), mask);
  v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}
constexpr float kStreamScale = 1.0F;
constexpr int kStreamE4m3Parts = 1;
KALIBRI_INLINE void stream_e4m3(const unsigned char* p, Vector* v) { load_e4m3(p, v); }

/// The lanes `first` of v[0] and v[1], and those that lie `step` further.
KALIBRI_INLINE void permute_pair(Vector* v, __m512i first, int step) {
  const Vector lanes = _mm512_permutex2var_ps(v[0], first, v[1]);
  v[1] = _mm512_permutex2var_ps(v[0], _mm512_add_epi32(first, _mm512_set1_epi32(step)), v[1]);
  v[0] = lanes;
}
/// The even and the odd columns, and back.
template <int kParts>
KALIBRI_INLINE void split(Vector* v) {
  if constexpr (kParts == 2) {
    permute_pair(v, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), 1);
  }
}
template <int kParts>
KALIBRI_INLINE void join(Vector* v) {
  if constexpr (kParts == 2) {
    permute_pair(v, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), 8);
  }
}

KALIBRI_INLINE Vector splat_f32(const unsigned char* p) {
  float value = 0;
  __builtin_memcpy(&value, p, sizeof value);
  return splat(value);
}

/// Codes 16 i to 16 i + 15 of the step at p; those of other codes may stand above them.
template <int kBits, int i>
KALIBRI_INLINE __m512i sixteen_codes(const unsigned char* p) {
  if constexpr (kBits == 8) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i)));
  } else if constexpr (kBits <= 4) {
    constexpr int kLow = 8 * (2 * i * kBits - window_of_eight<kBits, 4>(2 * i));
    constexpr int kHigh = 8 * ((2 * i + 1) * kBits - window_of_eight<kBits, 4>(2 * i + 1));
    const __m512i words = _mm512_mask_set1_epi32(_mm512_set1_epi32(static_cast<int>(load_window<kBits, 4>(p, 2 * i))),
                                                 0xff00, static_cast<int>(load_window<kBits, 4>(p, 2 * i + 1)));
    const __m512i shifts =
        _mm512_setr_epi32(0, kBits, 2 * kBits, 3 * kBits, 4 * kBits, 5 * kBits, 6 * kBits, 7 * kBits, 0, kBits,
                          2 * kBits, 3 * kBits, 4 * kBits, 5 * kBits, 6 * kBits, 7 * kBits);
    const __m512i skipped = _mm512_mask_set1_epi32(_mm512_set1_epi32(kLow), 0xff00, kHigh);
    return _mm512_srlv_epi32(words, _mm512_add_epi32(shifts, skipped));
  } else {
    constexpr int kWindow = i == 0 ? 0 : 4 * kBits - 16;  // the step's first or last 16 bytes
    const auto& places = kCodePlaces<kBits, 2 * i * kBits - kWindow, 16>;
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + kWindow)));
    return _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, _mm512_load_si512(places.bytes)),
                             _mm512_load_si512(places.shifts));
  }
}

/// The weights of all codes of four bits or fewer fill a vector, so that the low four bits of a code and whatever
/// stands above it are its index.
template <int kBits>
KALIBRI_INLINE Vector weight_table(Vector scale, Vector bias) {
  const __m512i codes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return fma(_mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32((1 << kBits) - 1))), scale, bias);
}
template <int kBits>
KALIBRI_INLINE Vector to_weights(__m512i codes, Vector scale, Vector bias) {
  if constexpr (kBits <= 4) return _mm512_permutexvar_ps(codes, weight_table<kBits>(scale, bias));
  if constexpr (kBits < 8) codes = _mm512_and_si512(codes, _mm512_set1_epi32((1 << kBits) - 1));
  return fma(_mm512_cvtepi32_ps(codes), scale, bias);
}
template <int kBits>
KALIBRI_INLINE void load_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  v[0] = to_weights<kBits>(sixteen_codes<kBits, 0>(p), scale, bias);
  v[1] = to_weights<kBits>(sixteen_codes<kBits, 1>(p), scale, bias);
}

// The low nibbles of 16 bytes are the even columns, the high ones the odd columns.
template <int kBits>
constexpr int kStreamAffineParts = kBits == 4 ? 2 : 1;
template <int kBits>
KALIBRI_INLINE void stream_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  if constexpr (kBits != 4) {
    load_affine<kBits>(p, scale, bias, v);
  } else {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    v[0] = to_weights<kBits>(bytes, scale, bias);
    v[1] = to_weights<kBits>(_mm512_srli_epi32(bytes, 4), scale, bias);
  }
}

using Words = __m512i;
template <int kBits>
KALIBRI_INLINE Words load_words(const unsigned char* p) {
  if constexpr (kBits == kWordBits<kBits>) return _mm512_loadu_si512(p);
  const __m512i low = _mm512_castsi256_si512(load_eight_words<kBits>(p));
  return _mm512_inserti64x4(low, load_eight_words<kBits>(p + word_bytes<kBits>(8)), 1);
}
KALIBRI_INLINE Words as_words(Vector a) { return _mm512_castps_si512(a); }
KALIBRI_INLINE Vector as_vector(Words a) { return _mm512_castsi512_ps(a); }
KALIBRI_INLINE Words zero_words() { return _mm512_setzero_si512(); }
KALIBRI_INLINE Words splat_pair(const unsigned char* p) { return as_words(splat_f32(p)); }
KALIBRI_INLINE Vector to_floats(Words a) { return _mm512_cvtepi32_ps(a); }

template <int kBits>
KALIBRI_INLINE Words code_pairs(Words words, int k) {
  const Words shifted =
      k == 0 ? words : _mm512_srlv_epi16(words, _mm512_set1_epi16(static_cast<short>(kWordBits<kBits> * k)));
  return k == kPairs<kBits> - 1 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi32(kPairMask<kBits>));
}
KALIBRI_INLINE Words multiply_pairs(Words a, Words b, Words sums) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}

KALIBRI_INLINE void transpose(Words* rows) {
  Words quads[4][4];  // column 4 L + j of four rows in quarter L of quads[.][j]
  KALIBRI_UNROLL for (int q = 0; q < 4; ++q) {
    const Words* r = rows + 4 * q;
    const Words low[2] = {_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpacklo_epi32(r[2], r[3])};
    const Words high[2] = {_mm512_unpackhi_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[2], r[3])};
    quads[q][0] = _mm512_unpacklo_epi64(low[0], low[1]);
    quads[q][1] = _mm512_unpackhi_epi64(low[0], low[1]);
    quads[q][2] = _mm512_unpacklo_epi64(high[0], high[1]);
    quads[q][3] = _mm512_unpackhi_epi64(high[0], high[1]);
  }
  KALIBRI_UNROLL for (int j = 0; j < 4; ++j) {
    const Words even[2] = {_mm512_shuffle_i32x4(quads[0][j], quads[1][j], 0x88),
                           _mm512_shuffle_i32x4(quads[2][j], quads[3][j], 0x88)};
    const Words odd[2] = {_mm512_shuffle_i32x4(quads[0][j], quads[1][j], 0xdd),
                          _mm512_shuffle_i32x4(quads[2][j], quads[3][j], 0xdd)};
    rows[j] = _mm512_shuffle_i32x4(even[0], even[1], 0x88);
    rows[4 + j] = _mm512_shuffle_i32x4(odd[0], odd[1], 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(even[0], even[1], 0xdd);
    rows[12 + j] = _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd);
  }
}

KALIBRI_INLINE Vector fold(const Vector* s) { return add(s[0], s[1]); }

KALIBRI_INLINE Vector tree(const Vector* folded) {
  const auto halves = [](Vector a, Vector b) {  // the halves a0 b0 + a1 b1
    return add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
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
  // Products i, i + 4, i + 8 and i + 12 share a vector so that the sums come out in order.
  const auto four = [&](const Vector* f) { return quarters(halves(f[0], f[4]), halves(f[8], f[12])); };
  return even_odd(low_high(four(folded), four(folded + 1)), low_high(four(folded + 2), four(folded + 3)));
}

}  // namespace
}  // namespace kalibri::kernels
