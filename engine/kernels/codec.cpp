#include "engine/kernels/codec.hpp"

#include <cmath>
#include <cstring>

#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::kernels {

namespace {

std::int64_t element_bytes(Format format) {
  switch (format) {
    case Format::f32:
      return 4;
    case Format::bf16:
      return 2;
    case Format::e4m3_block:
      return 1;
  }
  return 0;
}

/// fl(e4m3(code) * scale).
float decode_e4m3(std::uint8_t code, float scale) {
  const float value = e4m3_to_f32(code);
  const float kept = KALIBRI_MUTATE(value, "fp8_flush_subnormals", (code & 0x78) == 0 ? 0.0F : value);
  const float product = KALIBRI_MUTATE(KALIBRI_MUTATE(kept * scale, "fp8_divide", kept / scale), "fp8_no_scale", kept);
  return KALIBRI_MUTATE(product, "fp8_dequant_to_bf16", bf16_to_f32(f32_to_bf16(product)));
}

}  // namespace

void decode_row(const MatrixView& w, std::int64_t row, float* out) {
  const std::int64_t row_bytes = w.n_cols * element_bytes(w.format);
  const auto* bytes = static_cast<const std::uint8_t*>(w.data) + row * row_bytes;
  switch (w.format) {
    case Format::f32:
      std::memcpy(out, bytes, static_cast<std::size_t>(row_bytes));
      return;
    case Format::bf16:
      for (std::int64_t j = 0; j < w.n_cols; ++j) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes + 2 * j, 2);
        out[j] = bf16_to_f32(bits);
      }
      return;
    case Format::e4m3_block: {
      const std::int64_t blocks_per_row = (w.n_cols + kFp8Block - 1) / kFp8Block;
      const std::int64_t n_block_rows = (w.n_rows + kFp8Block - 1) / kFp8Block;
      const std::int64_t block = KALIBRI_MUTATE(kFp8Block, "fp8_block_64", kFp8Block / 2);
      std::int64_t block_row = KALIBRI_MUTATE(row / block, "fp8_scale_row0_only", 0) % n_block_rows;
      block_row = KALIBRI_MUTATE(block_row, "fp8_scale_first_block", 0);
      const float* scales = w.scale_inv + block_row * blocks_per_row;
      for (std::int64_t j = 0; j < w.n_cols; ++j) {
        std::int64_t block_col = KALIBRI_MUTATE(j / block, "fp8_scale_col0_only", 0) % blocks_per_row;
        block_col = KALIBRI_MUTATE(block_col, "fp8_scale_first_block", 0);
        out[j] = decode_e4m3(bytes[j], scales[block_col]);
      }
      return;
    }
  }
}

std::int64_t stored_bytes(const MatrixView& w) { return w.n_rows * w.n_cols * element_bytes(w.format); }

}  // namespace kalibri::kernels
