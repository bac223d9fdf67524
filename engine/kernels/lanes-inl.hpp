// 32 running sums in an ISA's vectors, and partial vectors at the end of an array. Written once for every ISA;
// everything has internal linkage, so that two ISAs' code in one program never mixes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/isa.hpp"

namespace kalibri::kernels {
namespace {

constexpr std::int64_t kLanes = 32;

KALIBRI_INLINE std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
KALIBRI_INLINE std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// The first n < kWidth floats at p, then zeros.
KALIBRI_INLINE Vector load_first(const float* p, std::int64_t n) {
  float lanes[kWidth] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
KALIBRI_INLINE void store_first(float* p, Vector a, std::int64_t n) {
  float lanes[kWidth];
  store(lanes, a);
  for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

/// The first n lanes, at most kWidth, none where n <= 0.
KALIBRI_INLINE void store_up_to(float* p, Vector a, std::int64_t n) {
  if (n >= kWidth) {
    store(p, a);
  } else {
    store_first(p, a, n);
  }
}

struct Lanes {
  Vector v[kVectors];
};

KALIBRI_INLINE Lanes zero_lanes() {
  Lanes result;
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) result.v[i] = zero();
  return result;
}
KALIBRI_INLINE Lanes load_lanes(const float* p) {
  Lanes result;
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) result.v[i] = load(p + i * kWidth);
  return result;
}
/// The first n < 32 floats at p, then zeros.
KALIBRI_INLINE Lanes load_first_lanes(const float* p, std::int64_t n) {
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_lanes(lanes);
}
KALIBRI_INLINE void store_lanes(float* p, const Lanes& a) {
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) store(p + i * kWidth, a.v[i]);
}
KALIBRI_INLINE Lanes add(const Lanes& a, const Lanes& b) {
  Lanes result;
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) result.v[i] = add(a.v[i], b.v[i]);
  return result;
}
KALIBRI_INLINE Lanes mul(const Lanes& a, Vector b) {
  Lanes result;
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) result.v[i] = mul(a.v[i], b);
  return result;
}
KALIBRI_INLINE Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  Lanes result;
  KALIBRI_UNROLL for (int i = 0; i < kVectors; ++i) result.v[i] = fma(a.v[i], b.v[i], c.v[i]);
  return result;
}

/// The tree over 32 sums in natural order.
KALIBRI_INLINE float sum(const Lanes& sums) {
  Vector folded[kWidth];
  KALIBRI_UNROLL for (int i = 0; i < kWidth; ++i) folded[i] = zero();
  folded[0] = fold(sums.v);
  float lanes[kWidth];
  store(lanes, tree(folded));
  return lanes[0];
}

/// The 32 running sums of a dot product of n columns.
KALIBRI_INLINE Lanes dot_lanes(const float* a, const float* b, std::int64_t n) {
  Lanes sums = zero_lanes();
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) sums = fma(load_lanes(a + j), load_lanes(b + j), sums);
  if (j < n) sums = fma(load_first_lanes(a + j, n - j), load_first_lanes(b + j, n - j), sums);
  return sums;
}

}  // namespace
}  // namespace kalibri::kernels
