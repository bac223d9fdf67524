// What an ISA header provides, in plain C++: a Vector of kWidth lanes and the operations below. The kernels (*-inl.hpp)
// are written once on these names; every other isa_*.hpp gives the same results with its own registers. No table is
// made from this one: it is the specification, and tests run the kernels on it.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/isa_macros.hpp"

namespace kalibri::kernels {
namespace {

constexpr int kWidth = 4;
constexpr int kVectors = 32 / kWidth;
constexpr int kRowTile = 2;  // weight rows of a register tile; kTokenTile tokens stand against them

struct Vector {
  float lane[kWidth];
};

template <class F>
KALIBRI_INLINE Vector each_lane(F f) {
  Vector result;
  for (int i = 0; i < kWidth; ++i) result.lane[i] = f(i);
  return result;
}

KALIBRI_INLINE Vector zero() {
  return each_lane([](int) { return 0.0F; });
}
KALIBRI_INLINE Vector splat(float value) {
  return each_lane([=](int) { return value; });
}
KALIBRI_INLINE Vector load(const float* p) {
  return each_lane([=](int i) { return p[i]; });
}
KALIBRI_INLINE void store(float* p, Vector a) {
  for (int i = 0; i < kWidth; ++i) p[i] = a.lane[i];
}

KALIBRI_INLINE Vector add(Vector a, Vector b) {
  return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
KALIBRI_INLINE Vector sub(Vector a, Vector b) {
  return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
KALIBRI_INLINE Vector mul(Vector a, Vector b) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
KALIBRI_INLINE Vector div(Vector a, Vector b) {
  return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
KALIBRI_INLINE Vector max(Vector a, Vector b) {
  return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
/// a * b + c, rounded once.
KALIBRI_INLINE Vector fma(Vector a, Vector b, Vector c) {
  return each_lane([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
KALIBRI_INLINE Vector negate(Vector a) {
  return each_lane([&](int i) { return -a.lane[i]; });
}

/// `then` in the lanes where a < b, elsewhere (NaN included) `otherwise`.
KALIBRI_INLINE Vector where_less(Vector a, Vector b, Vector then, Vector otherwise) {
  return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? then.lane[i] : otherwise.lane[i]; });
}
/// `then` in the lanes where a is NaN.
KALIBRI_INLINE Vector where_nan(Vector a, Vector then, Vector otherwise) {
  return each_lane([&](int i) { return a.lane[i] != a.lane[i] ? then.lane[i] : otherwise.lane[i]; });
}
/// a * 2^n, where n stands in the low nine bits of `shifted` (kRoundToInteger was added) and the result is normal.
KALIBRI_INLINE Vector times_power_of_two(Vector a, Vector shifted) {
  return each_lane([&](int i) {
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, a.lane[i]) +
                                         (__builtin_bit_cast(std::uint32_t, shifted.lane[i]) << 23));
  });
}

/// kWidth f32 or bf16 values, exactly. This and what follows load from addresses that may be unaligned.
KALIBRI_INLINE Vector load_f32(const unsigned char* p) {
  Vector result;
  __builtin_memcpy(result.lane, p, sizeof result.lane);
  return result;
}
KALIBRI_INLINE Vector load_bf16(const unsigned char* p) {
  return each_lane([p](int i) {
    return __builtin_bit_cast(float, std::uint32_t{p[2 * i]} << 16 | std::uint32_t{p[2 * i + 1]} << 24);
  });
}

/// 32 float8 e4m3fn values times 2^-8, exactly, in kVectors vectors: as half-precision numbers, sign to bit 15,
/// exponent and mantissa to bits 13..7, which are converted at full speed even where they are subnormal.
KALIBRI_INLINE void load_e4m3(const unsigned char* p, Vector* v) {
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t bits = (std::uint32_t{p[i]} & 0x80) << 24 | (std::uint32_t{p[i]} & 0x7f) << 20;
    v[i / kWidth].lane[i % kWidth] = __builtin_bit_cast(float, bits) * 0x1p112F;
  }
}
/// The same times kStreamScale, for weights that are used once: an ISA may be faster with another power of two.
constexpr float kStreamScale = 1.0F;
KALIBRI_INLINE void stream_e4m3(const unsigned char* p, Vector* v) { load_e4m3(p, v); }

/// One value in every lane, from memory.
KALIBRI_INLINE Vector splat_f32(const unsigned char* p) {
  float value = 0;
  __builtin_memcpy(&value, p, sizeof value);
  return splat(value);
}
KALIBRI_INLINE Vector splat_bf16(const unsigned char* p) {
  return splat(__builtin_bit_cast(float, std::uint32_t{p[0]} << 16 | std::uint32_t{p[1]} << 24));
}

/// 8 codes of kBits bits, least significant bit first, in the low bits of a word.
template <int kBits>
KALIBRI_INLINE std::uint64_t eight_codes(const unsigned char* p) {
  std::uint64_t word = 0;
  __builtin_memcpy(&word, p, kBits);
  return word;
}

/// fma(code, scale, bias) of 32 codes of kBits bits, in kVectors vectors.
template <int kBits>
KALIBRI_INLINE void load_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  for (int i = 0; i < 32; ++i) {
    const std::uint64_t code = eight_codes<kBits>(p + i / 8 * kBits) >> i % 8 * kBits & ((1U << kBits) - 1);
    v[i / kWidth].lane[i % kWidth] = static_cast<float>(code);
  }
  for (int i = 0; i < kVectors; ++i) v[i] = fma(v[i], scale, bias);
}

/// 32 codes as integers; of four bits the even columns come first, then the odd ones, of others the columns in order.
struct Codes {
  std::int32_t code[32];
};
template <int kBits>
KALIBRI_INLINE Codes load_codes(const unsigned char* p) {
  Codes result;
  for (int i = 0; i < 32; ++i) {
    const int column = kBits == 4 ? i % 16 * 2 + i / 16 : i;
    const std::uint64_t word = eight_codes<kBits>(p + column / 8 * kBits);
    result.code[i] = static_cast<std::int32_t>(word >> column % 8 * kBits & ((1U << kBits) - 1));
  }
  return result;
}

/// Running sums of exact products, as many as suit the ISA: 32 codes times 32 int16 at x, in the codes' order. A
/// group's total stays below 2^31.
struct CodeSums {
  std::int32_t sum;
};
KALIBRI_INLINE CodeSums zero_code_sums() { return {0}; }
KALIBRI_INLINE CodeSums multiply_codes(const Codes& w, const unsigned char* x, CodeSums sums) {
  for (int i = 0; i < 32; ++i) {
    std::int16_t value = 0;
    __builtin_memcpy(&value, x + 2 * i, 2);
    sums.sum += w.code[i] * value;
  }
  return sums;
}
/// totals [8] <- the total of each of 8 groups.
KALIBRI_INLINE void store_totals(const CodeSums* s, std::int32_t* totals) {
  for (int i = 0; i < 8; ++i) totals[i] = s[i].sum;
}
/// kWidth integers, rounded to nearest even.
KALIBRI_INLINE Vector load_integers(const std::int32_t* p) {
  return each_lane([=](int i) { return static_cast<float>(p[i]); });
}

/// The tree's steps from 32 sums down to kWidth, which stay in order.
KALIBRI_INLINE Vector fold(const Vector* s) {
  Vector sums[kVectors];
  for (int i = 0; i < kVectors; ++i) sums[i] = s[i];
  for (int h = kVectors / 2; h >= 1; h /= 2) {
    for (int i = 0; i < h; ++i) sums[i] = add(sums[i], sums[i + h]);
  }
  return sums[0];
}

/// The tree's other steps, for kWidth folded dot products at once: lane i is the sum of folded[i].
KALIBRI_INLINE Vector tree(const Vector* folded) {
  Vector result;
  for (int k = 0; k < kWidth; ++k) {
    Vector sums = folded[k];
    for (int h = kWidth / 2; h >= 1; h /= 2) {
      for (int i = 0; i < h; ++i) sums.lane[i] += sums.lane[i + h];
    }
    result.lane[k] = sums.lane[0];
  }
  return result;
}

}  // namespace
}  // namespace kalibri::kernels
