// Weights as lanes: 32 columns of a row decoded into even_odd lanes, a format each. Exact; what scales an FP8 product
// is carried by the activations and the result.
#pragma once

#include "engine/kernels/kernel_table.hpp"
#include "engine/kernels/lanes-inl.hpp"

namespace kalibri::kernels {
namespace {

struct F32Weights {
  static constexpr int kBytes = 4;
  static constexpr bool kScaled = false;
  KALIBRI_INLINE static Pair load(const unsigned char* p) { return load_f32(p); }
};
struct Bf16Weights {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  KALIBRI_INLINE static Pair load(const unsigned char* p) { return load_bf16(p); }
};
struct E4m3Weights {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  KALIBRI_INLINE static Pair load(const unsigned char* p) { return load_e4m3(p); }
};

/// FP8: decoded weights are too small by 2^-120, activations carry 2^60 and the result is multiplied by the other 2^60.
constexpr float kScaleUp = 0x1p60F;

template <class Weights>
KALIBRI_INLINE const unsigned char* row_of(const MatrixView& w, std::int64_t row) {
  return static_cast<const unsigned char*>(w.data) + row * w.n_cols * Weights::kBytes;
}

template <class Weights>
KALIBRI_INLINE Lanes decode(const unsigned char* p) {
  Lanes result;
  KALIBRI_UNROLL for (int i = 0; i < kVectors; i += 2) {
    const Pair pair = Weights::load(p + i * kWidth * Weights::kBytes);
    result.v[i] = pair.even;
    result.v[i + 1] = pair.odd;
  }
  return result;
}

/// Columns [32 step, 32 step + 32) of a row; a stream like this one is worth asking for ahead of use.
template <class Weights>
KALIBRI_INLINE Lanes load_weights(const unsigned char* row, std::int64_t step) {
  constexpr std::int64_t kAheadBytes = 1024;
  const unsigned char* p = row + step * kLanes * Weights::kBytes;
  __builtin_prefetch(p + kAheadBytes);
  return decode<Weights>(p);
}

/// The same for the last n < 32 columns of a row, then zeros; reads no further.
template <class Weights>
KALIBRI_INLINE Lanes load_last_weights(const unsigned char* row, std::int64_t step, std::int64_t n) {
  unsigned char columns[kLanes * Weights::kBytes] = {};
  __builtin_memcpy(columns, row + step * kLanes * Weights::kBytes, static_cast<std::size_t>(n) * Weights::kBytes);
  return decode<Weights>(columns);
}

}  // namespace
}  // namespace kalibri::kernels
