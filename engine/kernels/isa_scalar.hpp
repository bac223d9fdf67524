// What an ISA header provides, in plain C++: a Vector of kWidth lanes and the operations below. The kernels (*-inl.hpp)
// are written once on these names; every other isa_*.hpp gives the same results with its own registers. No table is
// made from this one: it is the specification, and tests run the kernels on it.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/isa_macros.hpp"
#include "engine/kernels/isa_words.hpp"

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
/// The same times kStreamScale, for weights that are used once: an ISA may be faster with another power of two, and
/// with another order of columns: of kParts consecutive vectors the i-th has columns i, i + kParts, i + 2 kParts ... of
/// theirs.
constexpr float kStreamScale = 1.0F;
constexpr int kStreamE4m3Parts = 1;
KALIBRI_INLINE void stream_e4m3(const unsigned char* p, Vector* v) { load_e4m3(p, v); }

/// 32 columns in order, brought into that order, and back. kParts = 1, 2 or 4, as far as the ISA streams so.
template <int kParts>
KALIBRI_INLINE void split(Vector*) {}
template <int kParts>
KALIBRI_INLINE void join(Vector*) {}

/// One value in every lane, from memory.
KALIBRI_INLINE Vector splat_f32(const unsigned char* p) {
  float value = 0;
  __builtin_memcpy(&value, p, sizeof value);
  return splat(value);
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

/// The same in the order of kStreamAffineParts, for weights that are used once.
template <int kBits>
constexpr int kStreamAffineParts = 1;
template <int kBits>
KALIBRI_INLINE void stream_affine(const unsigned char* p, Vector scale, Vector bias, Vector* v) {
  load_affine<kBits>(p, scale, bias, v);
}

/// kWidth words of codes (isa_words.hpp).
struct Words {
  std::uint32_t word[kWidth];
};
template <int kBits>
KALIBRI_INLINE std::uint32_t load_word(const unsigned char* p, int i) {
  std::uint32_t word = 0;
  if constexpr (kBits == kWordBits<kBits>) {
    __builtin_memcpy(&word, p + 4 * i, 4);
  } else {
    const std::uint64_t codes = eight_codes<kBits>(p + i / 2 * kBits) >> i % 2 * 4 * kBits;
    for (int k = 0; k < 4; ++k) word |= static_cast<std::uint32_t>(codes >> k * kBits & ((1U << kBits) - 1)) << 8 * k;
  }
  return word;
}
template <int kBits>
KALIBRI_INLINE Words load_words(const unsigned char* p) {
  Words result;
  for (int i = 0; i < kWidth; ++i) result.word[i] = load_word<kBits>(p, i);
  return result;
}
/// Word i of rows[k] <-> word k of rows[i], of kWidth rows.
KALIBRI_INLINE void transpose(Words* rows) {
  for (int i = 0; i < kWidth; ++i) {
    for (int k = 0; k < i; ++k) {
      const std::uint32_t word = rows[i].word[k];
      rows[i].word[k] = rows[k].word[i];
      rows[k].word[i] = word;
    }
  }
}
KALIBRI_INLINE Words as_words(Vector a) { return __builtin_bit_cast(Words, a); }
KALIBRI_INLINE Vector as_vector(Words a) { return __builtin_bit_cast(Vector, a); }

/// Pair k of each word.
template <int kBits>
KALIBRI_INLINE std::uint32_t code_pair(std::uint32_t word, int k) {
  return word >> kWordBits<kBits> * k & static_cast<std::uint32_t>(kPairMask<kBits>);
}
template <int kBits>
KALIBRI_INLINE Words code_pairs(const Words& w, int k) {
  Words result;
  for (int i = 0; i < kWidth; ++i) result.word[i] = code_pair<kBits>(w.word[i], k);
  return result;
}
/// The pair of int16 at p in every word.
KALIBRI_INLINE Words splat_pair(const unsigned char* p) {
  Words result;
  for (int i = 0; i < kWidth; ++i) __builtin_memcpy(&result.word[i], p, 4);
  return result;
}
KALIBRI_INLINE Words zero_words() { return {}; }

/// sum + the two products of a pair's halves, as int16.
KALIBRI_INLINE std::uint32_t multiply_pair(std::uint32_t a, std::uint32_t b, std::uint32_t sum) {
  const auto half = [](std::uint32_t pair, int i) {
    return std::int32_t{static_cast<std::int16_t>(static_cast<std::uint16_t>(pair >> 16 * i))};
  };
  return sum + static_cast<std::uint32_t>(half(a, 0) * half(b, 0) + half(a, 1) * half(b, 1));
}
/// That in each word, as int32: a group's total stays within its range.
KALIBRI_INLINE Words multiply_pairs(const Words& a, const Words& b, const Words& sums) {
  Words result;
  for (int i = 0; i < kWidth; ++i) result.word[i] = multiply_pair(a.word[i], b.word[i], sums.word[i]);
  return result;
}
/// int32, rounded to nearest even.
KALIBRI_INLINE Vector to_floats(const Words& a) {
  return each_lane([&](int i) { return static_cast<float>(static_cast<std::int32_t>(a.word[i])); });
}

/// Running sums of one row's products, as many as suit the ISA.
struct CodeSums {
  std::uint32_t sum;
};
KALIBRI_INLINE CodeSums zero_code_sums() { return {0}; }
/// kWords = 2, 4 or 8 words at w (8, where they are widened) times the pairs at x, [pair][kWords]. May read as if x had
/// 8 of the last pair.
template <int kBits, int kWords>
KALIBRI_INLINE CodeSums multiply_words(const unsigned char* w, const unsigned char* x, CodeSums sums) {
  for (int k = 0; k < kPairs<kBits>; ++k) {
    for (int i = 0; i < kWords; ++i) {
      std::uint32_t pair = 0;
      __builtin_memcpy(&pair, x + (k * kWords + i) * 4, 4);
      sums.sum = multiply_pair(code_pair<kBits>(load_word<kBits>(w, i), k), pair, sums.sum);
    }
  }
  return sums;
}
/// The eight sums fma(total of s[i], fl(scale_i * a_i), sums[i]), then fma(bias_i, scaled_sum_i, that): scales and
/// biases of kGridBytes bytes are f32 (4) or bf16 (2), a and scaled_sums f32.
template <int kGridBytes>
KALIBRI_INLINE void add_eight_groups(const CodeSums* s, const unsigned char* scales, const unsigned char* biases,
                                     const unsigned char* a, const unsigned char* scaled_sums, float* sums) {
  for (int i = 0; i < 8; i += kWidth) {
    const auto grid = [i](const unsigned char* p) {
      return kGridBytes == 4 ? load_f32(p + 4 * i) : load_bf16(p + 2 * i);
    };
    const Vector totals = each_lane([&](int k) { return static_cast<float>(static_cast<std::int32_t>(s[i + k].sum)); });
    const Vector sum = fma(totals, mul(grid(scales), load_f32(a + 4 * i)), load(sums + i));
    store(sums + i, fma(grid(biases), load_f32(scaled_sums + 4 * i), sum));
  }
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
