// The vector operations of AArch64's NEON: 4 lanes. What each must do is written in isa_scalar.hpp.
#pragma once

#include <arm_neon.h>

#include "engine/kernels/isa_macros.hpp"

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

struct Pair {
  Vector even, odd;
};

KALIBRI_INLINE Pair load_f32(const unsigned char* p) {
  const Vector a = vreinterpretq_f32_u8(vld1q_u8(p));
  const Vector b = vreinterpretq_f32_u8(vld1q_u8(p + 16));
  return {vuzp1q_f32(a, b), vuzp2q_f32(a, b)};
}

KALIBRI_INLINE Pair from_bf16_words(uint16x8_t words) {
  const uint32x4_t pairs = vreinterpretq_u32_u16(words);
  return {vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)),
          vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000U)))};
}

KALIBRI_INLINE Pair load_bf16(const unsigned char* p) { return from_bf16_words(vreinterpretq_u16_u8(vld1q_u8(p))); }

KALIBRI_INLINE Pair load_e4m3(const unsigned char* p) {
  const int16x8_t codes = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  return from_bf16_words(vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(codes, 4)), vdupq_n_u16(0x87f0)));
}

/// Lanes 0 2 1 3 of the sums that are left after the steps h = 16, 8 and 4.
KALIBRI_INLINE Vector fold_even_odd(const Vector* s) {
  const Vector even = add(add(s[0], s[4]), add(s[2], s[6]));
  const Vector odd = add(add(s[1], s[5]), add(s[3], s[7]));
  const auto half = [](float32x2_t a, float32x2_t b) { return vcombine_f32(a, b); };
  return add(half(vget_low_f32(even), vget_low_f32(odd)), half(vget_high_f32(even), vget_high_f32(odd)));
}
KALIBRI_INLINE Vector fold(const Vector* s) {
  const Vector sums = add(add(add(s[0], s[4]), add(s[2], s[6])), add(add(s[1], s[5]), add(s[3], s[7])));
  return vcombine_f32(vget_low_f32(vuzp1q_f32(sums, sums)), vget_low_f32(vuzp2q_f32(sums, sums)));
}

KALIBRI_INLINE Vector tree(const Vector* folded) {
  const Vector a = vpaddq_f32(folded[0], folded[1]);  // 0 + 2, 1 + 3 of each
  const Vector b = vpaddq_f32(folded[2], folded[3]);
  return vpaddq_f32(a, b);
}

}  // namespace
}  // namespace kalibri::kernels
