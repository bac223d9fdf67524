// Rows of a stored weight matrix as f32: the definition of what each format means, used to expand a matrix and to look
// up embedding rows; and rows of another format made from them. No order of summation here.
#pragma once

#include <cstdint>

#include "engine/kernels/affine_codec.hpp"
#include "engine/kernels/matrix_view.hpp"

namespace kalibri::kernels {

/// out [n_cols] <- row `row` of w: f32 and bf16 exactly; e4m3_block: fl(e4m3(code) * scale_inv[row / 128, j / 128]),
/// multiplied, never divided, the quotient rows and columns of a partial edge block included (weight_scale_inv as
/// DeepSeek-V3 introduced it: weight_dequant in its kernel.py); affine: fma(code, scale, bias). Throws nothing.
void decode_row(const MatrixView& w, std::int64_t row, float* out);

/// out [n_cols] <- row `row` of w, decoded and rounded to bf16. False: it holds NaN or an infinity; out is then spoilt.
[[nodiscard]] bool round_row(const MatrixView& w, std::int64_t row, std::uint16_t* out);

/// An affine format to make; group_size divides the rows.
struct AffineTarget {
  std::int64_t bits = 0;
  std::int64_t group_size = 0;
  AffineRule rule = AffineRule::cpu;
  bool operator==(const AffineTarget&) const = default;
};

/// Row `row` of w, decoded, rounded to bf16 and only then quantised, as kolibri-mlx's converter does: codes
/// [n_cols * bits / 8] packed, scales and biases [n_cols / group_size] in bf16. False as above, and where a group's
/// range has no scale.
[[nodiscard]] bool quantise_row(const MatrixView& w, std::int64_t row, const AffineTarget& target, unsigned char* codes,
                                std::uint16_t* scales, std::uint16_t* biases);

/// Each x_i <- itself rounded to bf16, nearest even.
void round_to_bf16(float* x, std::int64_t n);

/// y_i = fl(code_i * s): activations [n] as an FP8 linear of a serving stack reads them, quantised for each 128 columns
/// (the last may be fewer) with s = max(largest |x|, 1e-10) / 448 and code_i = x_i / s in e4m3, nearest even and
/// saturating. NaN for the columns of a group that holds NaN or an infinity. y may be x. Source: vllm 0.10,
/// per_token_group_quant_fp8.
void quantise_e4m3_groups(const float* x, std::int64_t n, float* y);

}  // namespace kalibri::kernels
