// A product with several activation rows. Weights are decoded into a panel that all tokens share; kRowTile rows x
// kTokenTile tokens of sums stay in registers, one slice (kWidth of the 32 lanes) at a time. A sum runs over the
// columns in order, whether in a register or resting in memory in between.
#pragma once

#include "engine/kernels/activations-inl.hpp"

namespace kalibri::kernels {
namespace {

/// A panel of decoded weights, [row tile][slice][step][row in tile][kWidth].
struct Panel {
  float* data;
  std::int64_t n_rows;
  std::int64_t n_steps;

  [[nodiscard]] KALIBRI_INLINE std::int64_t slice_size() const { return n_steps * kRowTile * kWidth; }
  [[nodiscard]] KALIBRI_INLINE float* tile(std::int64_t row) const {
    return data + row / kRowTile * kVectors * slice_size();
  }
};

/// Fills a panel with rows from `row` on and steps from `step` on; a tile's rows side by side, as they are written.
template <class Row>
KALIBRI_INLINE void decode_panel(const MatrixView& w, std::int64_t row, std::int64_t step, const Panel& panel) {
  for (std::int64_t i = 0; i < panel.n_rows; i += kRowTile) {
    for (std::int64_t k = 0; k < panel.n_steps; ++k) {
      const std::int64_t n_cols = w.n_cols - (step + k) * kLanes;
      for (std::int64_t r = 0; r < min(kRowTile, panel.n_rows - i); ++r) {
        const Row from(w, row + i + r);
        __builtin_prefetch(Row(w, row + i + r + kRowTile).at(step + k));  // the next tile's
        const Lanes weights = from.load(step + k, n_cols);
        float* to = panel.tile(i) + (k * kRowTile + r) * kWidth;
        KALIBRI_UNROLL for (int slice = 0; slice < kVectors; ++slice) {
          store(to + slice * panel.slice_size(), weights.v[slice]);
        }
      }
    }
  }
}

/// The same of affine rows, one after the other; `step` begins a group.
template <class Row>
KALIBRI_INLINE void decode_affine_panel(const MatrixView& w, std::int64_t row, std::int64_t step, const Panel& panel) {
  const std::int64_t group_steps = w.group_size / kLanes;
  const std::int64_t first_group = step / group_steps;
  const std::int64_t n_groups = panel.n_steps / group_steps;
  for (std::int64_t i = 0; i < panel.n_rows; ++i) {
    const Row from(w, row + i);
    float* to = panel.tile(i) + i % kRowTile * kWidth;
    std::int64_t at = step;
    for (std::int64_t group = 0; group < n_groups; group += kLanes) {
      const std::int64_t n = min(kLanes, n_groups - group);
      alignas(64) float grids[2 * kLanes];
      from.load_grids(first_group + group, n, grids);
      for (std::int64_t g = 0; g < n; ++g) {
        for (std::int64_t k = 0; k < group_steps; ++k, ++at, to += kRowTile * kWidth) {
          __builtin_prefetch(from.at(at) + row_bytes(w));  // the next row
          const Lanes weights = from.load(at, grids + g);
          KALIBRI_UNROLL for (int slice = 0; slice < kVectors; ++slice) {
            store(to + slice * panel.slice_size(), weights.v[slice]);
          }
        }
      }
    }
  }
}

/// One slice of kRows x kTokenTile dot products over n_steps steps: sums[row][token][32]. They start at zero or go on.
template <int kRows>
KALIBRI_INLINE void multiply_tile(const float* weights, const float* x, std::int64_t n_steps, bool start, float* sums) {
  Vector acc[std::size_t{kRows}][kTokenTile];
  KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) {
    KALIBRI_UNROLL for (int t = 0; t < kTokenTile; ++t) {
      acc[r][t] = start ? zero() : load(sums + (r * kTokenTile + t) * kLanes);
    }
  }
  for (std::int64_t step = 0; step < n_steps; ++step, weights += kRowTile * kWidth, x += kTokenTile * kWidth) {
    Vector row[std::size_t{kRows}];
    KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) row[r] = load(weights + r * kWidth);
    KALIBRI_UNROLL for (int t = 0; t < kTokenTile; ++t) {
      const Vector token = load(x + t * kWidth);
      KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) acc[r][t] = fma(row[r], token, acc[r][t]);
    }
  }
  KALIBRI_UNROLL for (int r = 0; r < kRows; ++r) {
    KALIBRI_UNROLL for (int t = 0; t < kTokenTile; ++t) store(sums + (r * kTokenTile + t) * kLanes, acc[r][t]);
  }
}

/// multiply_tile<n_rows> for 1 <= n_rows <= kRows.
template <int kRows = kRowTile>
KALIBRI_INLINE void multiply_some_rows(std::int64_t n_rows, const float* weights, const float* x, std::int64_t n_steps,
                                       bool start, float* sums) {
  if constexpr (kRows > 1) {
    if (n_rows < kRows) return multiply_some_rows<kRows - 1>(n_rows, weights, x, n_steps, start, sums);
  }
  multiply_tile<kRows>(weights, x, n_steps, start, sums);
}

constexpr std::int64_t kPanelRows = 8 * kRowTile;
constexpr std::int64_t kPanelProducts = kPanelRows * kTokenTile;

/// A panel times one token tile, whose slices lie x_slice floats apart; sums[row][token][32]. So many steps at once
/// that the activations stay in the first-level cache while the weights pass.
void multiply_panel(const Panel& panel, const float* x, std::int64_t x_slice, bool start, float* sums) {
  constexpr std::int64_t kSteps = 48 * kVectors;
  for (std::int64_t step = 0; step < panel.n_steps; step += kSteps) {
    for (std::int64_t slice = 0; slice < kVectors; ++slice) {
      for (std::int64_t row = 0; row < panel.n_rows; row += kRowTile) {
        multiply_some_rows(min(kRowTile, panel.n_rows - row),
                           panel.tile(row) + slice * panel.slice_size() + step * kRowTile * kWidth,
                           x + slice * x_slice + step * kTokenTile * kWidth, min(kSteps, panel.n_steps - step),
                           start && step == 0, sums + row * kTokenTile * kLanes + slice * kWidth);
      }
    }
  }
}

/// The trees of a panel's sums with the first n_tokens of a token tile; y[t * y_stride + row].
template <class Row>
void finish_panel(const float* sums, std::int64_t n_rows, std::int64_t n_tokens, float* y, std::int64_t y_stride) {
  alignas(64) float results[kPanelProducts + kWidth];
  for (std::int64_t i = 0; i < n_rows * kTokenTile; i += kWidth) store(results + i, finish<Row>(sums + i * kLanes));
  for (std::int64_t t = 0; t < n_tokens; ++t) {
    for (std::int64_t r = 0; r < n_rows; ++r) y[t * y_stride + r] = results[r * kTokenTile + t];
  }
}

/// How a product is cut. Few tokens: panels of one row tile and so many steps that panel and activations stay in the
/// first-level cache; sums rest between them. Many: whole rows, several tiles, decoded once for a block of tokens.
struct Cut {
  std::int64_t panel_rows, panel_steps, block_tokens;
};
KALIBRI_INLINE Cut cut_for(std::int64_t n_tokens, std::int64_t steps) {
  constexpr std::int64_t kFewTokens = 2 * kTokenTile;
  if (n_tokens <= kFewTokens) return {kRowTile, min(steps, 20 * kVectors), kFewTokens};
  return {kPanelRows, steps, 128};
}

/// Rows [begin, end), which share their scales if there are any.
template <class Row>
void multiply_many_tokens(const MatrixView& w, std::int64_t begin, std::int64_t end, const float* packed,
                          std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch) {
  const std::int64_t steps = n_steps(w.n_cols);
  const Cut cut = cut_for(n_tokens, steps);
  float* scaled = scratch + cut.panel_rows * cut.panel_steps * kLanes;
  alignas(64) float sums[(kPanelProducts + kWidth) * kLanes] = {};
  for (std::int64_t block = 0; block < n_tokens; block += cut.block_tokens) {
    const std::int64_t n_block = min(cut.block_tokens, n_tokens - block);
    const float* x = packed + block * steps * kLanes;
    if constexpr (Row::kScaled) {
      const std::int64_t n_tiles = round_up(n_block, kTokenTile) / kTokenTile;
      scale_activations<kTokenTile * kWidth>(w, begin, 1.0F, x, n_tiles * kVectors, scaled);
      x = scaled;
    }
    for (std::int64_t row = begin; row < end; row += cut.panel_rows) {
      for (std::int64_t step = 0; step < steps; step += cut.panel_steps) {
        const Panel panel = {scratch, min(cut.panel_rows, end - row), min(cut.panel_steps, steps - step)};
        if constexpr (Row::kGrouped) {
          decode_affine_panel<Row>(w, row, step, panel);
        } else {
          decode_panel<Row>(w, row, step, panel);
        }
        for (std::int64_t t = 0; t < n_block; t += kTokenTile) {
          float* tile_sums = sums + (cut.panel_steps < steps ? t * kRowTile * kLanes : 0);
          multiply_panel(panel, x + t * steps * kLanes + step * kTokenTile * kWidth, steps * kTokenTile * kWidth,
                         step == 0, tile_sums);
          if (step + panel.n_steps < steps) continue;
          finish_panel<Row>(tile_sums, panel.n_rows, min(kTokenTile, n_block - t), y + (block + t) * y_stride + row,
                            y_stride);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kalibri::kernels
