// Attention of query heads that see the same keys, in two passes over these from oldest to newest. A few keys at a time
// meet every head, so that they come from memory once. Scores: kWidth keys share a tree. Output: a lane is an output,
// its running sum goes over the keys.
#pragma once

#include "engine/kernels/elementwise-inl.hpp"
#include "engine/kernels/kernel_table.hpp"

namespace kalibri::kernels {
namespace {

/// scores[i] = dot32(query, key i) * scale for n <= kWidth keys.
KALIBRI_INLINE void score_keys(const AttentionHeads& heads, const float* query, const float* key, std::int64_t n,
                               float* scores) {
  Vector folded[kWidth];
  KALIBRI_UNROLL for (int k = 0; k < kWidth; ++k) folded[k] = zero();
  for (std::int64_t k = 0; k < n; ++k, key += heads.row_stride) {
    folded[k] = fold(dot_lanes(query, key, heads.head_dim).v);
  }
  store_up_to(scores, mul(tree(folded), splat(heads.scale)), n);
}

KALIBRI_INLINE float largest_of(const float* values, std::int64_t n) {
  float largest = values[0];
  std::int64_t i = 0;
  if (n >= kWidth) {
    Vector most = load(values);
    for (i = kWidth; i + kWidth <= n; i += kWidth) most = max(most, load(values + i));
    float lanes[kWidth];
    store(lanes, most);
    for (const float value : lanes) largest = value > largest ? value : largest;
  }
  for (; i < n; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

/// 32 sums, value i to sum i mod 32, and their tree.
KALIBRI_INLINE float sum_of(const float* values, std::int64_t n) {
  Lanes sums = zero_lanes();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums = add(sums, load_lanes(values + i));
  if (i < n) sums = add(sums, load_first_lanes(values + i, n - i));
  return sum(sums);
}

/// out_d = out_d + sum of p * value_d over n keys: kBlock vectors of outputs at a time, from column d on.
template <int kBlock>
KALIBRI_INLINE void add_values(const AttentionHeads& heads, const float* p, const float* value, std::int64_t n,
                               float* out) {
  Vector sums[std::size_t{kBlock}];
  KALIBRI_UNROLL for (int k = 0; k < kBlock; ++k) sums[k] = load(out + k * kWidth);
  for (std::int64_t i = 0; i < n; ++i, value += heads.row_stride) {
    const Vector weight = splat(p[i]);
    KALIBRI_UNROLL for (int k = 0; k < kBlock; ++k) sums[k] = fma(weight, load(value + k * kWidth), sums[k]);
  }
  KALIBRI_UNROLL for (int k = 0; k < kBlock; ++k) store(out + k * kWidth, sums[k]);
}

/// The same for the last n_columns < kWidth.
KALIBRI_INLINE void add_last_values(const AttentionHeads& heads, const float* p, const float* value, std::int64_t n,
                                    std::int64_t n_columns, float* out) {
  Vector sums = load_first(out, n_columns);
  for (std::int64_t i = 0; i < n; ++i, value += heads.row_stride) {
    sums = fma(splat(p[i]), load_first(value, n_columns), sums);
  }
  store_first(out, sums, n_columns);
}

void attention(const AttentionHeads& heads) {
  const std::int64_t head_dim = heads.head_dim;
  std::int64_t n_keys = 0;
  for (const KeyRun* run = heads.runs; run != heads.runs + heads.n_runs; ++run) n_keys += run->n_rows;

  float* scores = heads.scores;
  for (const KeyRun* run = heads.runs; run != heads.runs + heads.n_runs; ++run) {
    for (std::int64_t i = 0; i < run->n_rows; i += kWidth) {
      const std::int64_t n = min(kWidth, run->n_rows - i);
      for (std::int64_t h = 0; h < heads.n_heads; ++h) {
        score_keys(heads, heads.queries + h * head_dim, run->keys + i * heads.row_stride, n, scores + h * n_keys);
      }
      scores += n;
    }
  }

  for (std::int64_t h = 0; h < heads.n_heads; ++h) {
    float* p = heads.scores + h * n_keys;
    const Vector largest = splat(largest_of(p, n_keys));
    map(
        n_keys, p, [largest](Vector score) { return exp(sub(score, largest)); }, p);
  }

  for (std::int64_t i = 0; i < heads.n_heads * head_dim; ++i) heads.out[i] = 0;
  constexpr std::int64_t kKeys = 16;
  constexpr int kBlock = 8;
  const float* weights = heads.scores;
  for (const KeyRun* run = heads.runs; run != heads.runs + heads.n_runs; ++run) {
    for (std::int64_t i = 0; i < run->n_rows; i += kKeys) {
      const std::int64_t n = min(kKeys, run->n_rows - i);
      const float* values = run->values + i * heads.row_stride;
      for (std::int64_t h = 0; h < heads.n_heads; ++h) {
        const float* p = weights + h * n_keys;
        float* out = heads.out + h * head_dim;
        std::int64_t d = 0;
        for (; d + kBlock * kWidth <= head_dim; d += kBlock * kWidth)
          add_values<kBlock>(heads, p, values + d, n, out + d);
        for (; d + kWidth <= head_dim; d += kWidth) add_values<1>(heads, p, values + d, n, out + d);
        if (d < head_dim) add_last_values(heads, p, values + d, n, head_dim - d, out + d);
      }
      weights += n;
    }
  }

  for (std::int64_t h = 0; h < heads.n_heads; ++h) {
    const Vector denominator = splat(sum_of(heads.scores + h * n_keys, n_keys));
    float* out = heads.out + h * head_dim;
    map(
        head_dim, out, [denominator](Vector sum) { return div(sum, denominator); }, out);
  }
}

}  // namespace
}  // namespace kalibri::kernels
