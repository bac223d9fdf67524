// Elementary functions of the numeric path, one element at a time, the same bits on every machine. Built from +, -, *,
// /, fma and integer operations only; no libm but sqrt and fma. The SIMD versions evaluate the same expressions in the
// same order.
#pragma once

#include <bit>
#include <cstdint>

namespace kalibri::kernels {

/// exp(x), f32, at most 1 ulp from the exact value; 0 where that is below the smallest normal number, +inf above the
/// largest, NaN kept.
float exp_f32(float x);

/// 1 / (1 + exp(-x)), at most 3.5 ulps from the exact value in the normal range.
float sigmoid_f32(float x);

/// ln(1 + exp(x)), as x above 20: at most 1 ulp from the exact value in the normal range.
float softplus_f32(float x);

/// Cosine and sine of an angle in radians, |angle| <= 2^31; the argument is reduced in f64; correctly rounded to f32 in
/// all but rare cases (error below 0.501 ulp).
void sincos_f32(double angle, float* cosine, float* sine);

/// base^exponent in f64 for a normal base > 0 and |exponent * ln(base)| <= 50: relative error below 1e-14 (for the
/// rotary frequencies).
double pow_f64(double base, double exponent);

/// bf16 <-> f32; narrowing rounds to nearest even, NaN stays NaN.
inline float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const std::uint32_t quiet_nan = bits >> 16 | 0x40;  // sign and upper payload kept
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

/// Value of a float8 e4m3fn code: 1 sign, 4 exponent (bias 7), 3 mantissa bits; subnormal step 2^-9; largest 448.
/// The NaN codes 0x7f and 0xff give NaN.
float e4m3_to_f32(std::uint8_t code);

}  // namespace kalibri::kernels
