// Rows of weights as vectors, a format each. f32, bf16 and affine are the stored weight; FP8 (kScaled) is exact but for
// a power of two that the activations make up for, like the scale of the weight's block.
#pragma once

#include "engine/kernels/kernel_table.hpp"
#include "engine/kernels/lanes-inl.hpp"

namespace kalibri::kernels {
namespace {

/// The powers of two in the definition of an FP8 product: on the activations and on the result.
constexpr float kScaleIn = 0x1p-22F;
constexpr float kScaleOut = 0x1p30F;

/// load: 32 columns in kVectors vectors; stream: the same in the order of kParts, where each weight is used once.
struct F32Element {
  static constexpr int kBytes = 4;
  static constexpr bool kScaled = false;
  static constexpr int kParts = 1;
  KALIBRI_INLINE static void load(const unsigned char* p, Vector* v) {
    KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) v[i] = load_f32(p + i * kWidth * kBytes);
  }
  KALIBRI_INLINE static void stream(const unsigned char* p, Vector* v) { load(p, v); }
};
struct Bf16Element {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static constexpr int kParts = 1;
  KALIBRI_INLINE static void load(const unsigned char* p, Vector* v) {
    KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) v[i] = load_bf16(p + i * kWidth * kBytes);
  }
  KALIBRI_INLINE static void stream(const unsigned char* p, Vector* v) { load(p, v); }
};
struct E4m3Element {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static constexpr int kParts = kStreamE4m3Parts;
  KALIBRI_INLINE static void load(const unsigned char* p, Vector* v) { load_e4m3(p, v); }
  KALIBRI_INLINE static void stream(const unsigned char* p, Vector* v) { stream_e4m3(p, v); }
};

/// A stored row of elements that stand for themselves. Step s is columns [32 s, 32 s + 32); of the last one the first
/// n < 32 are there and zeros stand for the others, so that nothing further is read. `stream`: for a single use.
template <class Element>
class ElementRow {
 public:
  static constexpr bool kScaled = Element::kScaled;
  static constexpr bool kGrouped = false;
  static constexpr int kParts = Element::kParts;

  KALIBRI_INLINE ElementRow(const MatrixView& w, std::int64_t row)
      : data_(static_cast<const unsigned char*>(w.data) + row * w.n_cols * Element::kBytes) {}

  [[nodiscard]] KALIBRI_INLINE const unsigned char* at(std::int64_t step) const {
    return data_ + step * kLanes * Element::kBytes;
  }
  [[nodiscard]] KALIBRI_INLINE Lanes load(std::int64_t step, std::int64_t n) const {
    return decode<false>(at(step), n);
  }
  [[nodiscard]] KALIBRI_INLINE Lanes stream(std::int64_t step, std::int64_t n) const {
    return decode<true>(at(step), n);
  }

 private:
  template <bool kStreams>
  KALIBRI_INLINE static Lanes decode(const unsigned char* p, std::int64_t n) {
    unsigned char padded[kLanes * Element::kBytes] = {};
    if (n < kLanes) {
      __builtin_memcpy(padded, p, static_cast<std::size_t>(n) * Element::kBytes);
      p = padded;
    }
    Lanes result;
    if constexpr (kStreams) {
      Element::stream(p, result.v);
    } else {
      Element::load(p, result.v);
    }
    return result;
  }

  const unsigned char* data_;
};

using F32Row = ElementRow<F32Element>;
using Bf16Row = ElementRow<Bf16Element>;
using E4m3Row = ElementRow<E4m3Element>;

/// n consecutive scales or biases as floats.
template <int kBytes>
KALIBRI_INLINE void load_grid_as(const unsigned char* p, std::int64_t n, float* to) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(to + i, kBytes == 4 ? load_f32(p + i * 4) : load_bf16(p + i * 2));
  for (; i < n; ++i) {
    std::uint32_t bits = 0;
    KALIBRI_UNROLL for (int k = 0; k < kBytes; ++k) {
      bits |= std::uint32_t{p[i * kBytes + k]} << 8 * (4 - kBytes + k);
    }
    to[i] = __builtin_bit_cast(float, bits);
  }
}
KALIBRI_INLINE void load_grid(const unsigned char* p, std::int64_t n, Format format, float* to) {
  if (format == Format::f32) {
    load_grid_as<4>(p, n, to);
  } else {
    load_grid_as<2>(p, n, to);
  }
}

/// A row of packed codes. Groups are whole steps, so that a step lies in one group and is never a part.
template <int kBits>
class AffineRow {
 public:
  static constexpr bool kScaled = false;
  static constexpr bool kGrouped = true;
  static constexpr int kParts = kStreamAffineParts<kBits>;

  KALIBRI_INLINE AffineRow(const MatrixView& w, std::int64_t row)
      : data_(static_cast<const unsigned char*>(w.data) + row * w.n_cols * kBits / 8),
        has_f32_grid_(w.grid_format == Format::f32) {
    const std::int64_t first = row * (w.n_cols / w.group_size) * (has_f32_grid_ ? 4 : 2);
    scales_ = static_cast<const unsigned char*>(w.scales) + first;
    biases_ = static_cast<const unsigned char*>(w.biases) + first;
  }

  [[nodiscard]] KALIBRI_INLINE const unsigned char* at(std::int64_t step) const { return data_ + step * kStepBytes; }

  /// Scales, then biases, of n <= kLanes groups from `group` on, as floats.
  KALIBRI_INLINE void load_grids(std::int64_t group, std::int64_t n, float* to) const {
    const Format format = has_f32_grid_ ? Format::f32 : Format::bf16;
    const std::int64_t from = group * (has_f32_grid_ ? 4 : 2);
    load_grid(scales_ + from, n, format, to);
    load_grid(biases_ + from, n, format, to + kLanes);
  }
  /// The weights of a step; scale and bias as load_grids has them. `stream`: as stream_affine has them.
  [[nodiscard]] KALIBRI_INLINE Lanes load(std::int64_t step, const float* scale) const {
    Lanes result;
    load_affine<kBits>(at(step), splat(scale[0]), splat(scale[kLanes]), result.v);
    return result;
  }
  [[nodiscard]] KALIBRI_INLINE Lanes stream(std::int64_t step, const float* scale) const {
    Lanes result;
    stream_affine<kBits>(at(step), splat(scale[0]), splat(scale[kLanes]), result.v);
    return result;
  }

 private:
  static constexpr std::int64_t kStepBytes = kLanes * kBits / 8;
  const unsigned char* data_;
  const unsigned char* scales_;
  const unsigned char* biases_;
  bool has_f32_grid_;
};

/// The trees of kWidth dot products whose 32 sums lie one after the other.
KALIBRI_INLINE Vector trees(const float* sums) {
  Vector folded[kWidth];
  KALIBRI_UNROLL for (int i = 0; i < kWidth; ++i) folded[i] = fold(load_lanes(sums + i * kLanes).v);
  return tree(folded);
}
/// The same times what FP8 lacks.
template <class Row>
KALIBRI_INLINE Vector finish(const float* sums) {
  const Vector result = trees(sums);
  return Row::kScaled ? mul(result, splat(kScaleOut)) : result;
}

}  // namespace
}  // namespace kalibri::kernels
