// Activations as matmul reads them, padded with zeros to steps of 32 columns:
//   one token:   [step][32]
//   many tokens: [token tile][slice][step][token in tile][kWidth]
// A slice is kWidth of the 32 lanes; tokens are padded with zeros to whole tiles of kTokenTile.
#pragma once

#include "engine/kernels/weights-inl.hpp"

namespace kalibri::kernels {
namespace {

KALIBRI_INLINE std::int64_t n_steps(std::int64_t n_cols) { return (n_cols + kLanes - 1) / kLanes; }

KALIBRI_INLINE std::int64_t padded_tokens(std::int64_t n_tokens) {
  return n_tokens == 1 ? 1 : round_up(n_tokens, kTokenTile);
}

/// Packs a row of n_cols floats; the vector of (step, slice) goes to `to` + step * step_stride + slice * slice_stride.
KALIBRI_INLINE void pack_row(const float* from, std::int64_t n_cols, std::int64_t step_stride,
                             std::int64_t slice_stride, float* to) {
  for (std::int64_t j = 0; j < n_cols; j += kLanes, to += step_stride) {
    const Lanes columns = n_cols - j >= kLanes ? load_lanes(from + j) : load_first_lanes(from + j, n_cols - j);
    KALIBRI_UNROLL for (int slice = 0; slice < kVectors; ++slice) store(to + slice * slice_stride, columns.v[slice]);
  }
}

std::size_t packed_size(std::int64_t n_tokens, std::int64_t n_cols) {
  return static_cast<std::size_t>(padded_tokens(n_tokens) * n_steps(n_cols) * kLanes);
}

void pack(const Activations& x, std::int64_t token_begin, std::int64_t token_end, float* packed) {
  if (x.n_tokens == 1) {
    if (token_begin < token_end) pack_row(x.data, x.n_cols, kLanes, kWidth, packed);
    return;
  }
  constexpr std::int64_t kStep = kTokenTile * kWidth;
  const std::int64_t steps = n_steps(x.n_cols);
  for (std::int64_t token = token_begin; token < round_up(token_end, kTokenTile); ++token) {
    float* to = packed + token / kTokenTile * kVectors * steps * kStep + token % kTokenTile * kWidth;
    if (token < token_end) {
      pack_row(x.data + token * x.stride, x.n_cols, kStep, steps * kStep, to);
    } else {
      for (std::int64_t i = 0; i < kVectors * steps; ++i) store(to + i * kStep, zero());
    }
  }
}

/// One token in the order in which weights are streamed; to may be packed.
template <int kParts>
KALIBRI_INLINE void split_activations(std::int64_t n_cols, const float* packed, float* to) {
  for (std::int64_t j = 0; j < n_cols; j += kLanes) {
    Lanes lanes = load_lanes(packed + j);
    split<kParts>(lanes.v);
    store_lanes(to + j, lanes);
  }
}

/// FP8: x' of packed activations for the blocks that weight row `row` lies in, times the power of two that the decoded
/// weights lack. n_groups runs over all steps, each step kStep floats.
template <std::int64_t kStep>
KALIBRI_INLINE void scale_activations(const MatrixView& w, std::int64_t row, float make_up, const float* packed,
                                      std::int64_t n_groups, float* scaled) {
  const std::int64_t n_blocks = (w.n_cols + kFp8Block - 1) / kFp8Block;
  const float* scales = w.scale_inv + row / kFp8Block * n_blocks;
  const std::int64_t steps = n_steps(w.n_cols);
  for (std::int64_t group = 0; group < n_groups; ++group) {
    for (std::int64_t step = 0; step < steps; ++step, packed += kStep, scaled += kStep) {
      const Vector scale = splat(scales[step * kLanes / kFp8Block] * kScaleIn);
      KALIBRI_UNROLL for (std::int64_t i = 0; i < kStep; i += kWidth) {
        store(scaled + i, mul(mul(load(packed + i), scale), splat(make_up)));
      }
    }
  }
}

}  // namespace
}  // namespace kalibri::kernels
