// Definitions of the elementary functions. Taylor series throughout: their coefficients need no table of magic numbers,
// and their remainders, stated beside each, lie below the rounding of the last operation.
#include "engine/kernels/scalar_math.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "engine/kernels/exp_constants.hpp"

namespace kalibri::kernels {
namespace {

constexpr double kLn2High64 = 0x1.62e42fefa39efp-1;  // ln 2 = high + low
constexpr double kLn2Low64 = 0x1.abc9e3b39803fp-56;
constexpr double kRoundToInteger64 = 0x1.8p52;

/// Nearest integer, ties to even, for |x| < 2^51.
double nearest(double x) { return (x + kRoundToInteger64) - kRoundToInteger64; }

/// value * 2^exponent for a normal value and result.
double scale_by_power_of_two(double value, double exponent) {
  const auto shift = static_cast<std::uint64_t>(static_cast<std::int64_t>(exponent)) << 52;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) + shift);
}

/// ln(x) = k ln 2 + 2 atanh(f), x = m 2^k with sqrt(1/2) <= m < sqrt(2), f = (m - 1) / (m + 1), |f| < 0.1716:
/// the first term left out, f^24 / 25, is below 2e-20.
double log_f64(double x) {
  constexpr std::uint64_t kSqrtHalf = 0x3fe6'a09e'667f'3bcd;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto k = static_cast<std::int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<std::uint64_t>(k) << 52));
  const double f = (m - 1) / (m + 1);
  double series = 0;
  for (int n = 23; n >= 1; n -= 2) series = std::fma(series, f * f, 1.0 / n);
  return std::fma(static_cast<double>(k), kLn2High64, std::fma(static_cast<double>(k), kLn2Low64, 2 * f * series));
}

/// exp(x) = 2^n exp(r), |r| <= ln(2)/2: the remainder r^14/14! is below 5e-18.
double exp_f64(double x) {
  constexpr double kLog2E64 = 0x1.71547652b82fep+0;
  const double n = nearest(x * kLog2E64);
  const double r = std::fma(-n, kLn2Low64, std::fma(-n, kLn2High64, x));
  double series = 1;
  for (int k = 13; k >= 1; --k) series = std::fma(series, r / k, 1.0);
  return scale_by_power_of_two(series, n);
}

/// sin(r) for |r| <= pi/4, first term left out r^17/17!; cos likewise, r^18/18!.
double sin_taylor(double r) {
  double series = 1;
  for (int k = 14; k >= 2; k -= 2) series = std::fma(series, -(r * r) / (k * (k + 1)), 1.0);
  return r * series;
}
double cos_taylor(double r) {
  double series = 1;
  for (int k = 15; k >= 1; k -= 2) series = std::fma(series, -(r * r) / (k * (k + 1)), 1.0);
  return series;
}

}  // namespace

float exp_f32(float x) {
  if (std::isnan(x)) return x;
  if (x < kExpSmallest) return 0.0F;
  if (x > kExpLargest) return std::numeric_limits<float>::infinity();
  // x = n ln 2 + r. The first product's difference is exact, the second's rounds at 2^-24 of r.
  const float shifted = std::fma(x, kLog2E, kRoundToInteger);
  const float n = shifted - kRoundToInteger;
  const float r = std::fma(-n, kLn2Low, std::fma(-n, kLn2High, x));
  float series = kExpTaylor[0];
  for (int k = 1; k < 8; ++k) series = std::fma(series, r, kExpTaylor[k]);
  // times 2^n: n stands in the low bits of `shifted`, the exponent of `series` takes it.
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(series) + (std::bit_cast<std::uint32_t>(shifted) << 23));
}

float sigmoid_f32(float x) { return 1.0F / (1.0F + exp_f32(-x)); }

void sincos_f32(double angle, float* cosine, float* sine) {
  // angle = n pi/2 + r, pi/2 in three parts. The first difference is exact: both terms are multiples of 2^-53 (n != 0).
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPi[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
  const double n = nearest(angle * kTwoOverPi);
  const double r = std::fma(-n, kHalfPi[2], std::fma(-n, kHalfPi[1], std::fma(-n, kHalfPi[0], angle)));
  const double s = sin_taylor(r);
  const double c = cos_taylor(r);
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0:
      *cosine = static_cast<float>(c), *sine = static_cast<float>(s);
      break;
    case 1:
      *cosine = static_cast<float>(-s), *sine = static_cast<float>(c);
      break;
    case 2:
      *cosine = static_cast<float>(-c), *sine = static_cast<float>(-s);
      break;
    default:
      *cosine = static_cast<float>(s), *sine = static_cast<float>(-c);
      break;
  }
}

float softplus_f32(float x) {
  if (!(x <= 20.0F)) return x;  // ln(1 + exp(x)) rounds to x from here on; NaN is kept
  if (x < -50.0F) return exp_f32(x);
  const double e = exp_f64(static_cast<double>(x));
  if (e < 1e-4)
    return static_cast<float>(e * (1 - e * (0.5 - e * (1.0 / 3 - e * 0.25))));  // ln(1 + e), where 1 + e rounds
  return static_cast<float>(log_f64(1 + e));
}

double pow_f64(double base, double exponent) { return exp_f64(exponent * log_f64(base)); }

float e4m3_to_f32(std::uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  // Sign to bit 31, exponent and mantissa to bits 26..20: an f32 with the exponent too small by 127 - 7 = 120, exactly,
  // subnormal codes included.
  const std::uint32_t bits = (std::uint32_t{code} & 0x80) << 24 | (std::uint32_t{code} & 0x7f) << 20;
  return std::bit_cast<float>(bits) * 0x1p120F;
}

}  // namespace kalibri::kernels
