// Weights as vectors, a format each. f32 and bf16 are exact; FP8 (kScaled) is exact but for a power of two that the
// activations make up for, like the scale of the weight's block.
#pragma once

#include "engine/kernels/kernel_table.hpp"
#include "engine/kernels/lanes-inl.hpp"

namespace kalibri::kernels {
namespace {

/// The powers of two in the definition of an FP8 product: on the activations and on the result.
constexpr float kScaleIn = 0x1p-22F;
constexpr float kScaleOut = 0x1p30F;

/// load: 32 columns in kVectors vectors; stream: the same, where each weight is used once.
struct F32Weights {
  static constexpr int kBytes = 4;
  static constexpr bool kScaled = false;
  KALIBRI_INLINE static void load(const unsigned char* p, Vector* v) {
    KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) v[i] = load_f32(p + i * kWidth * kBytes);
  }
  KALIBRI_INLINE static void stream(const unsigned char* p, Vector* v) { load(p, v); }
};
struct Bf16Weights {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  KALIBRI_INLINE static void load(const unsigned char* p, Vector* v) {
    KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) v[i] = load_bf16(p + i * kWidth * kBytes);
  }
  KALIBRI_INLINE static void stream(const unsigned char* p, Vector* v) { load(p, v); }
};
struct E4m3Weights {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  KALIBRI_INLINE static void load(const unsigned char* p, Vector* v) { load_e4m3(p, v); }
  KALIBRI_INLINE static void stream(const unsigned char* p, Vector* v) { stream_e4m3(p, v); }
};

template <class Weights>
KALIBRI_INLINE const unsigned char* row_of(const MatrixView& w, std::int64_t row) {
  return static_cast<const unsigned char*>(w.data) + row * w.n_cols * Weights::kBytes;
}

/// Columns [32 step, 32 step + 32) of a row; `stream` decodes them for a single use.
template <class Weights>
KALIBRI_INLINE Lanes load_weights(const unsigned char* row, std::int64_t step) {
  Lanes result;
  Weights::load(row + step * kLanes * Weights::kBytes, result.v);
  return result;
}
template <class Weights>
KALIBRI_INLINE Lanes stream_weights(const unsigned char* row, std::int64_t step) {
  Lanes result;
  Weights::stream(row + step * kLanes * Weights::kBytes, result.v);
  return result;
}

/// The last n < 32 columns of a row as stored, then zeros: a row of one step. Reads no further.
template <class Weights>
struct LastStep {
  unsigned char row[kLanes * Weights::kBytes] = {};

  KALIBRI_INLINE LastStep(const unsigned char* from, std::int64_t step, std::int64_t n) {
    __builtin_memcpy(row, from + step * kLanes * Weights::kBytes, static_cast<std::size_t>(n) * Weights::kBytes);
  }
};

/// The trees of kWidth dot products whose 32 sums lie one after the other, times what FP8 lacks.
template <class Weights>
KALIBRI_INLINE Vector finish(const float* sums) {
  Vector folded[kWidth];
  KALIBRI_UNROLL for (int i = 0; i < kWidth; ++i) folded[i] = fold(load_lanes(sums + i * kLanes).v);
  const Vector result = tree(folded);
  return Weights::kScaled ? mul(result, splat(kScaleOut)) : result;
}

}  // namespace
}  // namespace kalibri::kernels
