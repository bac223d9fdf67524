// The vector operations of AArch64's NEON: 4 lanes. What each must do is written in isa_scalar.hpp.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "engine/kernels/isa_macros.hpp"
#include "engine/kernels/isa_words.hpp"

namespace kalibri::kernels {
namespace {

using Vector = float32x4_t;
constexpr int kWidth = 4;
constexpr int kVectors = 32 / kWidth;
constexpr int kRowTile = 6;  // 6 x 4 sums, 6 weights and an activation fit the 32 registers

KALIBRI_INLINE Vector zero() { return vdupq_n_f32(0.0F); }
KALIBRI_INLINE Vector splat(float value) { return vdupq_n_f32(value); }
KALIBRI_INLINE Vector load(const float* p) { return vld1q_f32(p); }
KALIBRI_INLINE void store(float* p, Vector a) { vst1q_f32(p, a); }

KALIBRI_INLINE Vector add(Vector a, Vector b) { return vaddq_f32(a, b); }
KALIBRI_INLINE Vector sub(Vector a, Vector b) { return vsubq_f32(a, b); }
KALIBRI_INLINE Vector mul(Vector a, Vector b) { return vmulq_f32(a, b); }
KALIBRI_INLINE Vector div(Vector a, Vector b) { return vdivq_f32(a, b); }
KALIBRI_INLINE Vector max(Vector a, Vector b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
KALIBRI_INLINE Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
KALIBRI_INLINE Vector negate(Vector a) { return vnegq_f32(a); }

KALIBRI_INLINE Vector where_less(Vector a, Vector b, Vector then, Vector otherwise) {
  return vbslq_f32(vcltq_f32(a, b), then, otherwise);
}
KALIBRI_INLINE Vector where_nan(Vector a, Vector then, Vector otherwise) {
  return vbslq_f32(vceqq_f32(a, a), otherwise, then);
}
KALIBRI_INLINE Vector times_power_of_two(Vector a, Vector shifted) {
  return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23)));
}

KALIBRI_INLINE Vector load_f32(const unsigned char* p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
KALIBRI_INLINE Vector load_bf16(const unsigned char* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

KALIBRI_INLINE void load_e4m3(const unsigned char* p, Vector* v) {
  KALIBRI_UNROLL for (int i = 0; i < kVectors; i += 2) {
    const int16x8_t codes = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p + i * kWidth)));
    const uint16x8_t halves = vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(codes, 7)), vdupq_n_u16(0xbf80));
    v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves)));
    v[i + 1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)));
  }
}
constexpr float kStreamScale = 1.0F;
constexpr int kStreamE4m3Parts = 1;
KALIBRI_INLINE void stream_e4m3(const unsigned char* p, Vector* v) { load_e4m3(p, v); }
template <int kParts>
KALIBRI_INLINE void split(Vector*) {}
template <int kParts>
KALIBRI_INLINE void join(Vector*) {}

KALIBRI_INLINE Vector splat_f32(const unsigned char* p) {
  float value = 0;
  __builtin_memcpy(&value, p, sizeof value);
  return splat(value);
}

template <int kBits>
KALIBRI_INLINE Vector four_codes(std::uint64_t word) {
  constexpr std::int32_t kShifts[4] = {0, -kBits, -2 * kBits, -3 * kBits};
  const uint32x4_t words = vdupq_n_u32(static_cast<std::uint32_t>(word));
  return vcvtq_f32_u32(vandq_u32(vshlq_u32(words, vld1q_s32(kShifts)), vdupq_n_u32((1U << kBits) - 1)));
}
template <int kBits>
KALIBRI_INLINE void load_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  KALIBRI_UNROLL for (int i = 0; i < 4; ++i) {
    const std::uint64_t word = load_window<kBits, 8>(p, i) >> 8 * (i * kBits - window_of_eight<kBits, 8>(i));
    v[2 * i] = fma(four_codes<kBits>(word), scale, bias);
    v[2 * i + 1] = fma(four_codes<kBits>(word >> 4 * kBits), scale, bias);
  }
}

template <int kBits>
constexpr int kStreamAffineParts = 1;
template <int kBits>
KALIBRI_INLINE void stream_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  load_affine<kBits>(p, scale, bias, v);
}

using Words = int32x4_t;
template <int kBits>
KALIBRI_INLINE Words load_words(const unsigned char* p) {
  if constexpr (kBits == kWordBits<kBits>) return vreinterpretq_s32_u8(vld1q_u8(p));
  unsigned char codes[16];
  KALIBRI_UNROLL for (int i = 0; i < 2; ++i) {
    std::uint64_t word = 0;
    __builtin_memcpy(&word, p + i * kBits, kBits);
    KALIBRI_UNROLL for (int k = 0; k < 8; ++k) {
      codes[8 * i + k] = static_cast<unsigned char>(word >> k * kBits & ((1U << kBits) - 1));
    }
  }
  return vreinterpretq_s32_u8(vld1q_u8(codes));
}
KALIBRI_INLINE Words as_words(Vector a) { return vreinterpretq_s32_f32(a); }
KALIBRI_INLINE Vector as_vector(Words a) { return vreinterpretq_f32_s32(a); }
KALIBRI_INLINE Words zero_words() { return vdupq_n_s32(0); }
KALIBRI_INLINE Words splat_pair(const unsigned char* p) { return as_words(splat_f32(p)); }
KALIBRI_INLINE Vector to_floats(Words a) { return vcvtq_f32_s32(a); }

template <int kBits>
KALIBRI_INLINE Words code_pairs(Words words, int k) {
  const auto by = static_cast<std::int32_t>(kWordBits<kBits> * k);
  const uint32x4_t shifted = vshlq_u32(vreinterpretq_u32_s32(words), vdupq_n_s32(-by));
  return vreinterpretq_s32_u32(vandq_u32(shifted, vdupq_n_u32(kPairMask<kBits>)));
}
KALIBRI_INLINE Words multiply_pairs(Words a, Words b, Words sums) {
  const int16x8_t x = vreinterpretq_s16_s32(a);
  const int16x8_t y = vreinterpretq_s16_s32(b);
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  return vaddq_s32(sums, vpaddq_s32(low, vmull_high_s16(x, y)));
}

KALIBRI_INLINE void transpose(Words* rows) {
  const int32x4x2_t low = vzipq_s32(rows[0], rows[2]);   // a0 c0 a1 c1, a2 c2 a3 c3
  const int32x4x2_t high = vzipq_s32(rows[1], rows[3]);  // b0 d0 b1 d1, b2 d2 b3 d3
  KALIBRI_UNROLL for (int i = 0; i < 2; ++i) {
    const int32x4x2_t columns = vzipq_s32(low.val[i], high.val[i]);
    rows[2 * i] = columns.val[0];
    rows[2 * i + 1] = columns.val[1];
  }
}

using CodeSums = int32x4_t;
KALIBRI_INLINE CodeSums zero_code_sums() { return zero_words(); }
template <int kBits, int kWords>
KALIBRI_INLINE CodeSums multiply_words(const unsigned char* w, const unsigned char* x, CodeSums sums) {
  if constexpr (kWords == 2) {
    std::uint64_t both = 0;
    __builtin_memcpy(&both, w, 8);
    const Words words = vreinterpretq_s32_u64(vcombine_u64(vcreate_u64(both), vcreate_u64(0)));
    KALIBRI_UNROLL for (int k = 0; k < kPairs<kBits>; ++k) {
      sums = multiply_pairs(code_pairs<kBits>(words, k), vreinterpretq_s32_u8(vld1q_u8(x + 8 * k)), sums);
    }
  } else {
    KALIBRI_UNROLL for (int i = 0; i < kWords; i += kWidth) {
      const Words words = load_words<kBits>(w + word_bytes<kBits>(i));
      KALIBRI_UNROLL for (int k = 0; k < kPairs<kBits>; ++k) {
        const Words pairs = vreinterpretq_s32_u8(vld1q_u8(x + 4 * (k * kWords + i)));
        sums = multiply_pairs(code_pairs<kBits>(words, k), pairs, sums);
      }
    }
  }
  return sums;
}
template <int kGridBytes>
KALIBRI_INLINE void add_eight_groups(const CodeSums* s, const unsigned char* scales, const unsigned char* biases,
                                     const unsigned char* a, const unsigned char* scaled_sums, float* sums) {
  KALIBRI_UNROLL for (int i = 0; i < 8; i += kWidth) {
    const auto grid = [i](const unsigned char* p) {
      return kGridBytes == 4 ? load_f32(p + 4 * i) : load_bf16(p + 2 * i);
    };
    const Words totals = vpaddq_s32(vpaddq_s32(s[i], s[i + 1]), vpaddq_s32(s[i + 2], s[i + 3]));
    const Vector sum = fma(to_floats(totals), mul(grid(scales), load_f32(a + 4 * i)), load(sums + i));
    store(sums + i, fma(grid(biases), load_f32(scaled_sums + 4 * i), sum));
  }
}

KALIBRI_INLINE Vector fold(const Vector* s) {
  return add(add(add(s[0], s[4]), add(s[2], s[6])), add(add(s[1], s[5]), add(s[3], s[7])));
}

KALIBRI_INLINE Vector tree(const Vector* folded) {
  const auto halves = [](Vector a, Vector b) {  // a0 a1 b0 b1 + a2 a3 b2 b3
    return add(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
  };
  return vpaddq_f32(halves(folded[0], folded[1]), halves(folded[2], folded[3]));
}

}  // namespace
}  // namespace kalibri::kernels
