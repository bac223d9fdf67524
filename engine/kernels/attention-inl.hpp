// Attention of one query head, in two passes over keys from oldest to newest. Scores: kWidth keys share a tree. Output:
// a lane is an output, its running sum goes over the keys.
#pragma once

#include "engine/kernels/elementwise-inl.hpp"
#include "engine/kernels/kernel_table.hpp"

namespace kalibri::kernels {
namespace {

/// scores[i] = dot32(query, key i) * scale for one run of keys.
KALIBRI_INLINE void score_keys(const AttentionHead& head, const KeyRun& run, float* scores) {
  const Vector scale = splat(head.scale);
  Vector folded[kWidth];
  KALIBRI_UNROLL for (int k = 0; k < kWidth; ++k) folded[k] = zero();
  for (std::int64_t i = 0; i < run.n_rows; i += kWidth) {
    const std::int64_t n = min(kWidth, run.n_rows - i);
    const float* key = run.keys + i * head.row_stride;
    for (std::int64_t k = 0; k < n; ++k, key += head.row_stride) {
      folded[k] = fold(dot_lanes(head.query, key, head.head_dim).v);
    }
    const Vector products = mul(tree(folded), scale);
    if (n == kWidth) {
      store(scores + i, products);
    } else {
      store_first(scores + i, products, n);
    }
  }
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

/// out_d = sum over keys of p * value_d, divided: kBlock vectors of outputs at a time, from column d on.
template <int kBlock>
KALIBRI_INLINE void weighted_values(const AttentionHead& head, std::int64_t d, Vector denominator) {
  Vector sums[std::size_t{kBlock}];
  KALIBRI_UNROLL for (int k = 0; k < kBlock; ++k) sums[k] = zero();
  const float* p = head.scores;
  for (const KeyRun* run = head.runs; run != head.runs + head.n_runs; ++run) {
    const float* value = run->values + d;
    for (std::int64_t i = 0; i < run->n_rows; ++i, value += head.row_stride) {
      const Vector weight = splat(*p++);
      KALIBRI_UNROLL for (int k = 0; k < kBlock; ++k) sums[k] = fma(weight, load(value + k * kWidth), sums[k]);
    }
  }
  KALIBRI_UNROLL for (int k = 0; k < kBlock; ++k) store(head.out + d + k * kWidth, div(sums[k], denominator));
}

/// The same for the last n < kWidth columns.
KALIBRI_INLINE void weighted_last_values(const AttentionHead& head, std::int64_t d, Vector denominator) {
  const std::int64_t n = head.head_dim - d;
  Vector sums = zero();
  const float* p = head.scores;
  for (const KeyRun* run = head.runs; run != head.runs + head.n_runs; ++run) {
    const float* value = run->values + d;
    for (std::int64_t i = 0; i < run->n_rows; ++i, value += head.row_stride) {
      sums = fma(splat(*p++), load_first(value, n), sums);
    }
  }
  store_first(head.out + d, div(sums, denominator), n);
}

void attention(const AttentionHead& head) {
  std::int64_t n_keys = 0;
  for (const KeyRun* run = head.runs; run != head.runs + head.n_runs; ++run) {
    score_keys(head, *run, head.scores + n_keys);
    n_keys += run->n_rows;
  }
  const Vector largest = splat(largest_of(head.scores, n_keys));
  map(
      n_keys, head.scores, [largest](Vector score) { return exp(sub(score, largest)); }, head.scores);
  const Vector denominator = splat(sum_of(head.scores, n_keys));

  constexpr int kBlock = 8;
  std::int64_t d = 0;
  for (; d + kBlock * kWidth <= head.head_dim; d += kBlock * kWidth) weighted_values<kBlock>(head, d, denominator);
  for (; d + kWidth <= head.head_dim; d += kWidth) weighted_values<1>(head, d, denominator);
  if (d < head.head_dim) weighted_last_values(head, d, denominator);
}

}  // namespace
}  // namespace kalibri::kernels
