// The small number formats of stored weights, one number at a time, and rounding to them. The reference's own; nothing
// is shared with the engine.
#pragma once

#include <cstdint>
#include <span>

namespace kalibri::reference {

/// bf16 is the upper half of an f32.
float decode_bf16(std::uint16_t code);

/// f16: 1 sign, 5 exponent bits (bias 15), 10 mantissa bits.
float decode_f16(std::uint16_t code);

/// e4m3fn: 1 sign, 4 exponent bits (bias 7), 3 mantissa bits; exponent field 0 is subnormal with step 2^-9; no
/// infinity; 0x7f and 0xff are NaN. Source: Micikevicius et al.,
/// FP8 Formats for Deep Learning (2022), table 1.
float decode_e4m3(std::uint8_t code);

/// The nearest bf16 number; of two as near, the one whose last bit is 0. NaN stays NaN.
float round_to_bf16(float x);
/// The same of an f64, rounded once and not by way of f32: 1 + 2^-8 + 2^-30 is nearer to 1 + 2^-7, its f32 is a tie.
double round_to_bf16(double x);

// T is float or double: the type of the arithmetic, which rounds no more than is said.

/// The nearest e4m3 number, of two as near the one whose last bit is 0; beyond the largest, 448, that one. NaN stays
/// NaN.
template <typename T>
T round_to_e4m3(T x);

/// One token's activations as they are quantised in front of an FP8 product: in each group of 128 columns (the last may
/// be shorter) x becomes fl(e4m3(fl(x / s)) * s) with s = fl(max(max |x|, 1e-10) / 448), fl rounding to T. Source:
/// vLLM, per_token_group_quant_fp8.
template <typename T>
void round_to_dynamic_fp8(std::span<T> row);

/// One token's activations as integers of at most max_code in size, with a scale a = fl(max |x| / max_code) for each
/// group of columns: x becomes fl(q * a), q the integer nearest to fl(x / a), of two as near the even one; a group of
/// zeros stays.
template <typename T>
void round_to_integers(std::span<T> row, std::int64_t group_size, std::int32_t max_code);

}  // namespace kalibri::reference
