// The gated delta rule for a tile of columns: a lane is a column, whose chain goes over the key dimension; time is the
// inner loop of the caller's tile, so that the tile's state stays in the first-level cache.
#pragma once

#include "engine/kernels/kernel_table.hpp"
#include "engine/kernels/lanes-inl.hpp"

namespace kalibri::kernels {
namespace {

/// Loads and stores of kN whole vectors of columns, or of the first n columns of one.
template <int kN>
struct WholeColumns {
  static constexpr int kCount = kN;
  KALIBRI_INLINE Vector get(const float* from, int v) const { return load(from + v * kWidth); }
  KALIBRI_INLINE void put(float* to, int v, Vector value) const { store(to + v * kWidth, value); }
};
struct FirstColumns {
  static constexpr int kCount = 1;
  std::int64_t n;
  KALIBRI_INLINE Vector get(const float* from, int) const { return load_first(from, n); }
  KALIBRI_INLINE void put(float* to, int, Vector value) const { store_first(to, value, n); }
};

/// All tokens, for the columns from `column` on.
template <class Columns>
KALIBRI_INLINE void delta_columns(const DeltaTile& tile, std::int64_t column, Columns columns) {
  constexpr int kCount = Columns::kCount;
  float* const state = tile.state + column;
  for (std::int64_t t = 0; t < tile.n_tokens; ++t) {
    const float* q = tile.q + t * tile.qkv_stride;
    const float* k = tile.k + t * tile.qkv_stride;
    const Vector alpha = splat(tile.alpha[t * tile.gate_stride]);
    const Vector beta = splat(tile.beta[t * tile.gate_stride]);
    Vector sums[std::size_t{kCount}];
    KALIBRI_UNROLL for (int v = 0; v < kCount; ++v) sums[v] = zero();
    float* row = state;
    for (std::int64_t i = 0; i < tile.dk; ++i, row += tile.state_stride) {
      const Vector key = splat(k[i]);
      KALIBRI_UNROLL for (int v = 0; v < kCount; ++v) {
        const Vector decayed = mul(alpha, columns.get(row, v));
        columns.put(row, v, decayed);
        sums[v] = fma(key, decayed, sums[v]);
      }
    }
    Vector change[std::size_t{kCount}];
    KALIBRI_UNROLL for (int v = 0; v < kCount; ++v) {
      change[v] = mul(beta, sub(columns.get(tile.v + t * tile.qkv_stride + column, v), sums[v]));
      sums[v] = zero();
    }
    row = state;
    for (std::int64_t i = 0; i < tile.dk; ++i, row += tile.state_stride) {
      const Vector key = splat(k[i]);
      const Vector query = splat(q[i]);
      KALIBRI_UNROLL for (int v = 0; v < kCount; ++v) {
        const Vector updated = fma(key, change[v], columns.get(row, v));
        columns.put(row, v, updated);
        sums[v] = fma(query, updated, sums[v]);
      }
    }
    KALIBRI_UNROLL for (int v = 0; v < kCount; ++v) columns.put(tile.out + t * tile.out_stride + column, v, sums[v]);
  }
}

void delta_rule(const DeltaTile& tile) {
  constexpr int kAtOnce = 4;
  std::int64_t column = 0;
  for (; column + kAtOnce * kWidth <= tile.n_columns; column += kAtOnce * kWidth) {
    delta_columns(tile, column, WholeColumns<kAtOnce>{});
  }
  for (; column + kWidth <= tile.n_columns; column += kWidth) delta_columns(tile, column, WholeColumns<1>{});
  if (column < tile.n_columns) delta_columns(tile, column, FirstColumns{tile.n_columns - column});
}

}  // namespace
}  // namespace kalibri::kernels
