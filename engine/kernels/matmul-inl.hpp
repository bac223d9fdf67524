// Products of a weight matrix with one or many activation rows, the same bits either way: each output's 32 sums run
// over the columns in order. Weights and activations meet in even_odd lanes (isa_scalar.hpp); only the tree knows.
//
// One token: two rows far apart stream at once, decoded in registers. Many: kRowTile rows x kTokenTile tokens of sums
// stay in registers for one slice (kWidth of the 32 lanes) at a time, over weights decoded into a panel that all tokens
// share.
#pragma once

#include "engine/kernels/activations-inl.hpp"
#include "engine/kernels/weights-inl.hpp"

namespace kalibri::kernels {
namespace {

/// The dot products whose 32 sums lie at sums + i * stride, for i < n <= kWidth; to y[i].
template <class Weights>
KALIBRI_INLINE void finish(const float* sums, std::int64_t stride, std::int64_t n, float* y) {
  Vector folded[kWidth];
  KALIBRI_UNROLL for (int i = 0; i < kWidth; ++i) folded[i] = fold_even_odd(load_lanes(sums + i * stride).v);
  Vector result = tree(folded);
  if (Weights::kScaled) result = mul(result, splat(kScaleUp));
  if (n == kWidth) {
    store(y, result);
  } else {
    store_first(y, result, n);
  }
}

// ---- one token ----

/// The 32 sums of rows row_a and row_b.
template <class Weights>
KALIBRI_INLINE void multiply_two_rows(const MatrixView& w, std::int64_t row_a, std::int64_t row_b, const float* x,
                                      float* sums_a, float* sums_b) {
  const unsigned char* a = row_of<Weights>(w, row_a);
  const unsigned char* b = row_of<Weights>(w, row_b);
  Lanes a_lanes = zero_lanes();
  Lanes b_lanes = zero_lanes();
  const std::int64_t n_full = w.n_cols / kLanes;
  for (std::int64_t step = 0; step < n_full; ++step) {
    const Lanes activations = load_lanes(x + step * kLanes);
    a_lanes = fma(load_weights<Weights>(a, step), activations, a_lanes);
    b_lanes = fma(load_weights<Weights>(b, step), activations, b_lanes);
  }
  if (const std::int64_t n = w.n_cols % kLanes; n != 0) {
    const Lanes activations = load_lanes(x + n_full * kLanes);
    a_lanes = fma(load_last_weights<Weights>(a, n_full, n), activations, a_lanes);
    b_lanes = fma(load_last_weights<Weights>(b, n_full, n), activations, b_lanes);
  }
  store_lanes(sums_a, a_lanes);
  store_lanes(sums_b, b_lanes);
}

/// Rows [begin, end): the first half and the second half side by side, because two long streams read faster than one.
template <class Weights>
void multiply_one_token(const MatrixView& w, std::int64_t begin, std::int64_t end, const float* x, float* y) {
  const std::int64_t half = (end - begin + 1) / 2;
  float sums[2][kWidth * kLanes] = {};
  for (std::int64_t i = begin; i < begin + half; i += kWidth) {
    const std::int64_t n = min(kWidth, begin + half - i);
    const std::int64_t n_second = min(n, end - (i + half));
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t second = min(i + k + half, end - 1);
      multiply_two_rows<Weights>(w, i + k, second, x, sums[0] + k * kLanes, sums[1] + k * kLanes);
    }
    finish<Weights>(sums[0], kLanes, n, y + i);
    if (n_second > 0) finish<Weights>(sums[1], kLanes, n_second, y + i + half);
  }
}

// ---- many tokens ----

constexpr std::int64_t kPanelRows = 8 * kRowTile;  // a multiple of kWidth
constexpr std::int64_t kTokenBlock = 128;          // tokens that pass before the next panel is decoded
static_assert(kPanelRows % kWidth == 0 && kTokenBlock % kTokenTile == 0);

/// Decodes rows [begin, end) into panel [row tile][slice][step][row in tile][kWidth].
template <class Weights>
KALIBRI_INLINE void decode_panel(const MatrixView& w, std::int64_t begin, std::int64_t end, float* panel) {
  const std::int64_t n_full = w.n_cols / kLanes;
  const std::int64_t steps = n_steps(w.n_cols);
  for (std::int64_t row = begin; row < end; ++row) {
    const unsigned char* from = row_of<Weights>(w, row);
    const std::int64_t tile = (row - begin) / kRowTile;
    float* to = panel + (tile * kVectors * steps * kRowTile + (row - begin) % kRowTile) * kWidth;
    const auto put = [&](std::int64_t step, const Lanes& weights) {
      KALIBRI_UNROLL for (int slice = 0; slice < kVectors; ++slice) {
        store(to + (slice * steps + step) * kRowTile * kWidth, weights.v[slice]);
      }
    };
    for (std::int64_t step = 0; step < n_full; ++step) put(step, load_weights<Weights>(from, step));
    if (n_full < steps) put(n_full, load_last_weights<Weights>(from, n_full, w.n_cols % kLanes));
  }
}

/// One slice of kRows x kTokenTile dot products: sums[row][token][slice] of stride kLanes a token.
template <int kRows>
KALIBRI_INLINE void multiply_tile(const float* weights, const float* x, std::int64_t steps, float* sums) {
  constexpr int kTokens = kTokenTile;
  Vector acc[std::size_t{kRows}][kTokenTile];
  KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) {
    KALIBRI_UNROLL for (int t = 0; t < kTokens; ++t) acc[r][t] = zero();
  }
  for (std::int64_t step = 0; step < steps; ++step, weights += kRowTile * kWidth, x += kTokens * kWidth) {
    Vector row[std::size_t{kRows}];
    KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) row[r] = load(weights + r * kWidth);
    KALIBRI_UNROLL for (int t = 0; t < kTokens; ++t) {
      const Vector token = load(x + t * kWidth);
      KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) acc[r][t] = fma(row[r], token, acc[r][t]);
    }
  }
  KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) {
    KALIBRI_UNROLL for (int t = 0; t < kTokens; ++t) store(sums + (r * kTokens + t) * kLanes, acc[r][t]);
  }
}

/// multiply_tile<n_rows> for 1 <= n_rows <= kRows.
template <int kRows = kRowTile>
KALIBRI_INLINE void multiply_some_rows(std::int64_t n_rows, const float* weights, const float* x, std::int64_t steps,
                                       float* sums) {
  if constexpr (kRows > 1) {
    if (n_rows < kRows) return multiply_some_rows<kRows - 1>(n_rows, weights, x, steps, sums);
  }
  multiply_tile<kRows>(weights, x, steps, sums);
}

/// The decoded rows [begin, end) times n_tokens packed tokens; y[t * y_stride + row].
template <class Weights>
void multiply_panel(const float* panel, std::int64_t begin, std::int64_t end, const float* x, std::int64_t n_tokens,
                    std::int64_t steps, float* y, std::int64_t y_stride) {
  const std::int64_t n_rows = end - begin;
  const std::int64_t weight_slice = steps * kRowTile * kWidth;
  const std::int64_t token_slice = steps * kTokenTile * kWidth;
  float sums[kPanelRows * kTokenTile * kLanes] = {};
  for (std::int64_t token = 0; token < n_tokens; token += kTokenTile, x += kVectors * token_slice) {
    for (std::int64_t slice = 0; slice < kVectors; ++slice) {
      for (std::int64_t row = 0; row < n_rows; row += kRowTile) {
        multiply_some_rows(min(kRowTile, n_rows - row), panel + (row / kRowTile * kVectors + slice) * weight_slice,
                           x + slice * token_slice, steps, sums + row * kTokenTile * kLanes + slice * kWidth);
      }
    }
    for (std::int64_t t = 0; t < min(kTokenTile, n_tokens - token); ++t) {
      float* out = y + (token + t) * y_stride + begin;
      for (std::int64_t row = 0; row < n_rows; row += kWidth) {
        finish<Weights>(sums + (row * kTokenTile + t) * kLanes, kTokenTile * kLanes, min(kWidth, n_rows - row),
                        out + row);
      }
    }
  }
}

// ---- the table's entries ----

std::size_t matmul_scratch(const MatrixView& w, std::int64_t n_tokens) {
  const std::int64_t n_cols = round_up(w.n_cols, kLanes);
  const std::int64_t n_scaled = w.format == Format::e4m3_block ? padded_tokens(min(n_tokens, kTokenBlock)) : 0;
  const std::int64_t n_panel = n_tokens == 1 ? 0 : kPanelRows;
  return static_cast<std::size_t>((n_scaled + n_panel) * n_cols);
}

/// Rows [begin, end) share their scales, if there are any.
template <class Weights>
void multiply_many_tokens(const MatrixView& w, std::int64_t begin, std::int64_t end, const float* packed,
                          std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch) {
  const std::int64_t steps = n_steps(w.n_cols);
  float* panel = scratch;
  float* scaled = scratch + kPanelRows * steps * kLanes;
  for (std::int64_t token = 0; token < n_tokens; token += kTokenBlock) {
    const std::int64_t n = min(kTokenBlock, n_tokens - token);
    const float* x = packed + token * steps * kLanes;
    if (Weights::kScaled) {
      scale_activations<kTokenTile * kWidth>(w, begin, kScaleUp, x, round_up(n, kTokenTile) / kTokenTile * kVectors,
                                             scaled);
      x = scaled;
    }
    for (std::int64_t row = begin; row < end; row += kPanelRows) {
      const std::int64_t row_end = min(row + kPanelRows, end);
      decode_panel<Weights>(w, row, row_end, panel);
      multiply_panel<Weights>(panel, row, row_end, x, n, steps, y + token * y_stride, y_stride);
    }
  }
}

template <class Weights>
void matmul_as(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const float* packed,
               std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch) {
  for (std::int64_t begin = row_begin; begin < row_end;) {
    const std::int64_t end = Weights::kScaled ? min(row_end, (begin / kFp8Block + 1) * kFp8Block) : row_end;
    if (n_tokens > 1) {
      multiply_many_tokens<Weights>(w, begin, end, packed, n_tokens, y, y_stride, scratch);
    } else if (n_tokens == 1) {
      if (Weights::kScaled) scale_activations<kLanes>(w, begin, kScaleUp, packed, 1, scratch);
      multiply_one_token<Weights>(w, begin, end, Weights::kScaled ? scratch : packed, y);
    }
    begin = end;
  }
}

void matmul(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const float* packed,
            std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch) {
  switch (w.format) {
    case Format::f32:
      return matmul_as<F32Weights>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case Format::bf16:
      return matmul_as<Bf16Weights>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case Format::e4m3_block:
      return matmul_as<E4m3Weights>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
  }
}

}  // namespace
}  // namespace kalibri::kernels
