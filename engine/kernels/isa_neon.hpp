// The vector operations of AArch64's NEON: 4 lanes. What each must do is written in isa_scalar.hpp.
#pragma once

#include <arm_neon.h>

#include <cstdint>

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
KALIBRI_INLINE void stream_e4m3(const unsigned char* p, Vector* v) { load_e4m3(p, v); }

KALIBRI_INLINE Vector splat_f32(const unsigned char* p) {
  float value = 0;
  __builtin_memcpy(&value, p, sizeof value);
  return splat(value);
}
KALIBRI_INLINE Vector splat_bf16(const unsigned char* p) {
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, p, sizeof bits);
  return vreinterpretq_f32_u32(vdupq_n_u32(std::uint32_t{bits} << 16));
}

template <int kBits>
KALIBRI_INLINE Vector four_codes(std::uint64_t word) {
  constexpr std::int32_t kShifts[4] = {0, -kBits, -2 * kBits, -3 * kBits};
  const uint32x4_t words = vdupq_n_u32(static_cast<std::uint32_t>(word));
  return vcvtq_f32_u32(vandq_u32(vshlq_u32(words, vld1q_s32(kShifts)), vdupq_n_u32((1U << kBits) - 1)));
}
template <int kBits>
KALIBRI_INLINE void load_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  KALIBRI_UNROLL for (int i = 0; i < kVectors; i += 2, p += kBits) {
    std::uint64_t word = 0;
    __builtin_memcpy(&word, p, kBits);
    v[i] = fma(four_codes<kBits>(word), scale, bias);
    v[i + 1] = fma(four_codes<kBits>(word >> 4 * kBits), scale, bias);
  }
}

struct Codes {
  int16x8_t part[4];
};
struct CodeSums {
  int32x4_t low, high;
};

template <int kBits>
KALIBRI_INLINE Codes load_codes(const unsigned char* p) {
  Codes result;
  if constexpr (kBits == 8) {
    KALIBRI_UNROLL for (int i = 0; i < 4; ++i) result.part[i] = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p + 8 * i)));
  } else if constexpr (kBits == 4) {
    KALIBRI_UNROLL for (int i = 0; i < 2; ++i) {
      const uint16x8_t pairs = vmovl_u8(vld1_u8(p + 8 * i));
      result.part[i] = vreinterpretq_s16_u16(vandq_u16(pairs, vdupq_n_u16(15)));
      result.part[i + 2] = vreinterpretq_s16_u16(vshrq_n_u16(pairs, 4));
    }
  } else {
    KALIBRI_UNROLL for (int i = 0; i < 4; ++i, p += kBits) {
      std::uint64_t word = 0;
      __builtin_memcpy(&word, p, kBits);
      std::int16_t codes[8];
      for (int k = 0; k < 8; ++k) codes[k] = static_cast<std::int16_t>(word >> k * kBits & ((1U << kBits) - 1));
      result.part[i] = vld1q_s16(codes);
    }
  }
  return result;
}

KALIBRI_INLINE CodeSums zero_code_sums() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
KALIBRI_INLINE CodeSums multiply_codes(const Codes& w, const unsigned char* x, CodeSums sums) {
  KALIBRI_UNROLL for (int i = 0; i < 4; ++i) {
    const int16x8_t values = vreinterpretq_s16_u8(vld1q_u8(x + 16 * i));
    sums.low = vmlal_s16(sums.low, vget_low_s16(w.part[i]), vget_low_s16(values));
    sums.high = vmlal_s16(sums.high, vget_high_s16(w.part[i]), vget_high_s16(values));
  }
  return sums;
}
KALIBRI_INLINE void store_totals(const CodeSums* s, std::int32_t* totals) {
  KALIBRI_UNROLL for (int i = 0; i < 8; ++i) totals[i] = vaddvq_s32(vaddq_s32(s[i].low, s[i].high));
}
KALIBRI_INLINE Vector load_integers(const std::int32_t* p) { return vcvtq_f32_s32(vld1q_s32(p)); }

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
