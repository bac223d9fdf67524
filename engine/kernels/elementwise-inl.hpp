// Kernels whose outputs do not depend on one another: a vector at a time, the last one filled up with zeros.
#pragma once

#include "engine/kernels/exp_constants.hpp"
#include "engine/kernels/lanes-inl.hpp"

namespace kalibri::kernels {
namespace {

/// y_i = f(in_i, ...) for 0 <= i < n. y may be one of the inputs.
template <class F, class... In>
KALIBRI_INLINE void map(std::int64_t n, float* y, F f, const In*... in) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, f(load(in + i)...));
  if (i < n) store_first(y + i, f(load_first(in + i, n - i)...), n - i);
}

/// exp_f32 in every lane.
KALIBRI_INLINE Vector exp(Vector x) {
  const Vector shifted = fma(x, splat(kLog2E), splat(kRoundToInteger));
  const Vector n = negate(sub(shifted, splat(kRoundToInteger)));
  const Vector r = fma(n, splat(kLn2Low), fma(n, splat(kLn2High), x));
  Vector series = splat(kExpTaylor[0]);
  KALIBRI_UNROLL for (int k = 1; k < 8; ++k) series = fma(series, r, splat(kExpTaylor[k]));
  const Vector normal = times_power_of_two(series, shifted);
  const Vector not_small = where_less(x, splat(kExpSmallest), zero(), normal);
  const Vector in_range = where_less(splat(kExpLargest), x, splat(__builtin_inff()), not_small);
  return where_nan(x, x, in_range);
}

KALIBRI_INLINE Vector sigmoid(Vector x) {
  const Vector one = splat(1.0F);
  return div(one, add(one, exp(negate(x))));
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  const float mean = sum(dot_lanes(x, x, n)) / static_cast<float>(n);
  const Vector r = splat(1.0F / __builtin_sqrtf(mean + eps));
  if (weight == nullptr) {
    map(
        n, y, [r](Vector value) { return mul(value, r); }, x);
  } else {
    map(
        n, y, [r](Vector value, Vector w) { return mul(mul(value, r), w); }, x, weight);
  }
}

void rope(float* x, const float* cos, const float* sin, std::int64_t half) {
  const auto rotated_a = [](Vector a, Vector b, Vector c, Vector s) { return fma(a, c, negate(mul(b, s))); };
  const auto rotated_b = [](Vector a, Vector b, Vector c, Vector s) { return fma(b, c, mul(a, s)); };
  float* y = x + half;
  std::int64_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const Vector a = load(x + i), b = load(y + i), c = load(cos + i), s = load(sin + i);
    store(x + i, rotated_a(a, b, c, s));
    store(y + i, rotated_b(a, b, c, s));
  }
  if (i < half) {
    const std::int64_t n = half - i;
    const Vector a = load_first(x + i, n), b = load_first(y + i, n), c = load_first(cos + i, n),
                 s = load_first(sin + i, n);
    store_first(x + i, rotated_a(a, b, c, s), n);
    store_first(y + i, rotated_b(a, b, c, s), n);
  }
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  map(
      n, y, [](Vector g, Vector u) { return mul(mul(g, sigmoid(g)), u); }, gate, up);
}

void sigmoid(const float* x, std::int64_t n, float* y) {
  map(
      n, y, [](Vector value) { return sigmoid(value); }, x);
}

void add(const float* x, std::int64_t n, float* y) {
  map(
      n, y, [](Vector sum, Vector term) { return add(sum, term); }, y, x);
}

void axpy(float a, const float* x, std::int64_t n, float* y) {
  map(
      n, y, [factor = splat(a)](Vector sum, Vector term) { return fma(factor, term, sum); }, y, x);
}

void silu(const float* x, std::int64_t n, float* y) {
  map(
      n, y, [](Vector value) { return mul(value, sigmoid(value)); }, x);
}

void scale(float a, const float* x, std::int64_t n, float* y) {
  map(
      n, y, [factor = splat(a)](Vector value) { return mul(factor, value); }, x);
}

void multiply(const float* x, std::int64_t n, float* y) {
  map(
      n, y, [](Vector product, Vector factor) { return mul(product, factor); }, y, x);
}

void multiply_add(const float* a, const float* b, std::int64_t n, float* y) {
  map(
      n, y, [](Vector sum, Vector u, Vector v) { return fma(u, v, sum); }, y, a, b);
}

/// y_i = finish(convolution at i).
template <class F>
KALIBRI_INLINE void convolve(const float* const* rows, const float* weights, std::int64_t n_taps, std::int64_t n,
                             float* y, F finish) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Vector total = zero();
    for (std::int64_t j = 0; j < n_taps; ++j) total = fma(load(weights + j * n + i), load(rows[j] + i), total);
    store(y + i, finish(total));
  }
  if (i < n) {
    Vector total = zero();
    for (std::int64_t j = 0; j < n_taps; ++j) {
      total = fma(load_first(weights + j * n + i, n - i), load_first(rows[j] + i, n - i), total);
    }
    store_first(y + i, finish(total), n - i);
  }
}

void conv(const float* const* rows, const float* weights, std::int64_t n_taps, std::int64_t n, float* y) {
  convolve(rows, weights, n_taps, n, y, [](Vector value) { return value; });
}

void conv_silu(const float* const* rows, const float* weights, std::int64_t n_taps, std::int64_t n, float* y) {
  convolve(rows, weights, n_taps, n, y, [](Vector value) { return mul(value, sigmoid(value)); });
}

}  // namespace
}  // namespace kalibri::kernels
