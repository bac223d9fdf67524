// Rows of a stored weight matrix as f32: the definition of what each format means, used to expand a matrix and to look
// up embedding rows. No order of summation here, only decoding.
#pragma once

#include <cstdint>

#include "engine/kernels/matrix_view.hpp"

namespace kalibri::kernels {

/// out [n_cols] <- row `row` of w: f32 and bf16 exactly; e4m3_block: fl(e4m3(code) * scale_inv[row / 128, j / 128]),
/// multiplied, never divided, the quotient rows and columns of a partial edge block included.
/// Source: weight_scale_inv as DeepSeek-V3 introduced it (weight_dequant in its kernel.py). Throws nothing.
void decode_row(const MatrixView& w, std::int64_t row, float* out);

/// Bytes of the stored matrix, scales not counted.
std::int64_t stored_bytes(const MatrixView& w);

}  // namespace kalibri::kernels
