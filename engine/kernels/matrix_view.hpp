// A weight matrix where it lies: format, shape and pointers, never a copy. Kernels multiply with it in place.
#pragma once

#include <cstdint>

namespace kalibri::kernels {

enum class Format : std::uint8_t {
  f32,
  bf16,        // stored round to nearest even
  e4m3_block,  // float8 e4m3fn codes, one f32 scale_inv for each block of 128 x 128 (partial blocks at the edges)
  affine,      // packed integer codes, a scale and a bias for each group of a row's columns, as MLX has them
};

/// Side of an e4m3_block block, in rows and in columns.
inline constexpr std::int64_t kFp8Block = 128;

/// Stored weight [n_rows, n_cols] = [out, in], row-major without padding; y = x * W^T.
/// e4m3_block: W[i, j] = e4m3(code[i, j]) * scale_inv[i / 128, j / 128]; scale_inv is [ceil(n_rows/128),
/// ceil(n_cols/128)] row-major f32, below 2^16 in size; NaN codes (0x7f, 0xff) must have been refused before.
/// affine: W[i, j] = fma(code[i, j], scales[i, j / group_size], biases[i, j / group_size]); a row is n_cols * bits / 8
/// bytes (affine_codec.hpp: pack_codes), scales and biases are [n_rows, n_cols / group_size] and finite.
/// `data`, `scales` and `biases` need not be aligned.
struct MatrixView {
  Format format = Format::f32;
  std::int64_t n_rows = 0;
  std::int64_t n_cols = 0;
  const void* data = nullptr;
  const float* scale_inv = nullptr;
  std::int32_t bits = 0;        // affine: 2, 3, 4, 5, 6 or 8
  std::int32_t group_size = 0;  // affine: 32, 64 or 128, a divisor of n_cols
  const void* scales = nullptr;
  const void* biases = nullptr;
  Format grid_format = Format::bf16;  // of scales and biases: bf16 or f32
};

/// Bytes of a stored row; scales not counted.
inline std::int64_t row_bytes(const MatrixView& w) {
  switch (w.format) {
    case Format::f32:
      return w.n_cols * 4;
    case Format::bf16:
      return w.n_cols * 2;
    case Format::e4m3_block:
      return w.n_cols;
    case Format::affine:
      return w.n_cols * w.bits / 8;
  }
  return 0;
}

/// Bytes of an affine row's scales, and of its biases.
inline std::int64_t grid_row_bytes(const MatrixView& w) {
  return w.n_cols / w.group_size * (w.grid_format == Format::f32 ? 4 : 2);
}

/// Bytes of the stored matrix, scales not counted.
inline std::int64_t stored_bytes(const MatrixView& w) { return w.n_rows * row_bytes(w); }

/// The same with its scales and biases.
inline std::int64_t all_bytes(const MatrixView& w) {
  if (w.format == Format::affine) return stored_bytes(w) + 2 * w.n_rows * grid_row_bytes(w);
  const auto n_blocks = [](std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
  const std::int64_t n_scales = w.format == Format::e4m3_block ? n_blocks(w.n_rows) * n_blocks(w.n_cols) : 0;
  return stored_bytes(w) + n_scales * 4;
}

/// Rows [first, first + n) of a matrix, in place; not for e4m3_block, whose blocks rows share.
inline MatrixView rows_of(const MatrixView& w, std::int64_t first, std::int64_t n) {
  MatrixView rows = w;
  rows.n_rows = n;
  rows.data = static_cast<const char*>(w.data) + first * row_bytes(w);
  if (w.format == Format::affine) {
    rows.scales = static_cast<const char*>(w.scales) + first * grid_row_bytes(w);
    rows.biases = static_cast<const char*>(w.biases) + first * grid_row_bytes(w);
  }
  return rows;
}

/// Row `row` as a matrix of one row, whatever its format.
inline MatrixView row_of(const MatrixView& w, std::int64_t row) {
  MatrixView view = rows_of(w, row, 1);
  if (w.format == Format::e4m3_block) view.scale_inv += row / kFp8Block * ((w.n_cols + kFp8Block - 1) / kFp8Block);
  return view;
}

}  // namespace kalibri::kernels
