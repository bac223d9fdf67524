// A product with one activation row: weights pass once, so the memory's speed is what counts.
#pragma once

#include "engine/kernels/activations-inl.hpp"

namespace kalibri::kernels {
namespace {

/// The 32 sums of rows row_a and row_b; x in the order in which the weights are streamed.
template <class Row>
KALIBRI_INLINE void multiply_two_rows(const MatrixView& w, std::int64_t row_a, std::int64_t row_b, const float* x,
                                      float* sums_a, float* sums_b) {
  constexpr std::int64_t kAheadBytes = 4096;  // how far before their use weights are asked for
  const Row a(w, row_a);
  const Row b(w, row_b);
  Lanes a_lanes = zero_lanes();
  Lanes b_lanes = zero_lanes();
  const std::int64_t n_full = w.n_cols / kLanes;
  for (std::int64_t step = 0; step < n_full; ++step) {
    __builtin_prefetch(a.at(step) + kAheadBytes);
    __builtin_prefetch(b.at(step) + kAheadBytes);
    const Lanes activations = load_lanes(x + step * kLanes);
    a_lanes = fma(a.stream(step, kLanes), activations, a_lanes);
    b_lanes = fma(b.stream(step, kLanes), activations, b_lanes);
  }
  if (const std::int64_t n = w.n_cols % kLanes; n != 0) {
    const Lanes activations = load_lanes(x + n_full * kLanes);
    a_lanes = fma(a.stream(n_full, n), activations, a_lanes);
    b_lanes = fma(b.stream(n_full, n), activations, b_lanes);
  }
  join<Row::kParts>(a_lanes.v);
  join<Row::kParts>(b_lanes.v);
  store_lanes(sums_a, a_lanes);
  store_lanes(sums_b, b_lanes);
}

/// The same of affine rows: side by side where each has few vectors of sums, which then wait less for each other; else
/// in turns, so that one row's sums and grids have the registers for themselves.
template <class Row>
KALIBRI_INLINE void multiply_two_affine_rows(const MatrixView& w, std::int64_t row_a, std::int64_t row_b,
                                             const float* x, float* sums_a, float* sums_b) {
  constexpr std::int64_t kAheadBytes = 2048;
  constexpr int kAtOnce = kVectors <= 2 ? 2 : 1;
  const Row rows[2] = {Row(w, row_a), Row(w, row_b)};
  Lanes sums[2] = {zero_lanes(), zero_lanes()};
  const std::int64_t n_groups = w.n_cols / w.group_size;
  const std::int64_t group_steps = w.group_size / kLanes;
  for (std::int64_t group = 0; group < n_groups; group += kLanes) {
    const std::int64_t n = min(kLanes, n_groups - group);
    KALIBRI_NO_UNROLL for (int first = 0; first < 2; first += kAtOnce) {
      alignas(64) float grids[std::size_t{kAtOnce}][2 * kLanes];
      Lanes lanes[std::size_t{kAtOnce}];
      KALIBRI_UNROLL for (int r = 0; r < kAtOnce; ++r) {
        rows[first + r].load_grids(group, n, grids[r]);
        lanes[r] = sums[first + r];
      }
      std::int64_t step = group * group_steps;
      const auto multiply_step = [&](std::int64_t g) {
        const Lanes activations = load_lanes(x + step * kLanes);
        KALIBRI_UNROLL for (int r = 0; r < kAtOnce; ++r) {
          lanes[r] = fma(rows[first + r].stream(step, grids[r] + g), activations, lanes[r]);
        }
        ++step;
      };
      const auto prefetch = [&] {
        KALIBRI_UNROLL for (int r = 0; r < kAtOnce; ++r) __builtin_prefetch(rows[first + r].at(step) + kAheadBytes);
      };
      for (std::int64_t g = 0; g < n; ++g) {  // of one, two or four steps
        prefetch();
        multiply_step(g);
        if (group_steps == 1) continue;
        multiply_step(g);
        if (group_steps == 2) continue;
        prefetch();
        multiply_step(g);
        multiply_step(g);
      }
      KALIBRI_UNROLL for (int r = 0; r < kAtOnce; ++r) sums[first + r] = lanes[r];
    }
  }
  join<Row::kParts>(sums[0].v);
  join<Row::kParts>(sums[1].v);
  store_lanes(sums_a, sums[0]);
  store_lanes(sums_b, sums[1]);
}

/// Rows [begin, end): the first half and the second half side by side, because two long streams read faster than one.
template <class Row>
void multiply_one_token(const MatrixView& w, std::int64_t begin, std::int64_t end, const float* x, float* y) {
  const std::int64_t half = (end - begin + 1) / 2;
  alignas(64) float sums[2][kWidth * kLanes] = {};
  for (std::int64_t i = begin; i < begin + half; i += kWidth) {
    const std::int64_t n = min(kWidth, begin + half - i);
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t second = min(i + k + half, end - 1);
      if constexpr (Row::kGrouped) {
        multiply_two_affine_rows<Row>(w, i + k, second, x, sums[0] + k * kLanes, sums[1] + k * kLanes);
      } else {
        multiply_two_rows<Row>(w, i + k, second, x, sums[0] + k * kLanes, sums[1] + k * kLanes);
      }
    }
    store_up_to(y + i, finish<Row>(sums[0]), n);
    store_up_to(y + i + half, finish<Row>(sums[1]), min(n, end - (i + half)));
  }
}

}  // namespace
}  // namespace kalibri::kernels
