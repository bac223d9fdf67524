// A weight matrix where it lies: format, shape and pointers, never a copy. Kernels multiply with it in place.
#pragma once

#include <cstdint>

namespace kalibri::kernels {

enum class Format : std::uint8_t {
  f32,
  bf16,        // stored round to nearest even
  e4m3_block,  // float8 e4m3fn codes, one f32 scale_inv for each block of 128 x 128 (partial blocks at the edges)
};

/// Side of an e4m3_block block, in rows and in columns.
inline constexpr std::int64_t kFp8Block = 128;

/// Stored weight [n_rows, n_cols] = [out, in], row-major without padding; y = x * W^T.
/// e4m3_block: W[i, j] = e4m3(code[i, j]) * scale_inv[i / 128, j / 128]; scale_inv is [ceil(n_rows/128),
/// ceil(n_cols/128)] row-major f32, finite and not negative; NaN codes (0x7f, 0xff) must have been refused before.
/// `data` need not be aligned.
struct MatrixView {
  Format format = Format::f32;
  std::int64_t n_rows = 0;
  std::int64_t n_cols = 0;
  const void* data = nullptr;
  const float* scale_inv = nullptr;
};

/// Rows [first, first + n) of an f32 or bf16 matrix, in place.
inline MatrixView rows_of(const MatrixView& w, std::int64_t first, std::int64_t n) {
  const std::int64_t element_bytes = w.format == Format::bf16 ? 2 : 4;
  return {w.format, n, w.n_cols, static_cast<const char*>(w.data) + first * w.n_cols * element_bytes, nullptr};
}

}  // namespace kalibri::kernels
