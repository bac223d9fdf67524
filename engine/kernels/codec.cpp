#include "engine/kernels/codec.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/kernels/affine_codec.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::kernels {

namespace {

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = e4m3_to_f32(static_cast<std::uint8_t>(code));
  return values;
}
const std::array<float, 256> kE4m3Values = e4m3_values();

/// fl(e4m3(code) * scale).
float decode_e4m3(std::uint8_t code, float scale) {
  const float value = kE4m3Values[code];
  const float kept = KALIBRI_MUTATE(value, "fp8_flush_subnormals", (code & 0x78) == 0 ? 0.0F : value);
  const float product = KALIBRI_MUTATE(KALIBRI_MUTATE(kept * scale, "fp8_divide", kept / scale), "fp8_no_scale", kept);
  return KALIBRI_MUTATE(product, "fp8_dequant_to_bf16", bf16_to_f32(f32_to_bf16(product)));
}

void decode_group(const MatrixView& w, const std::uint8_t* packed, AffineGrid grid, float* out) {
  std::uint8_t codes[kLargestAffineGroup];
  unpack_codes(packed, w.group_size, w.bits, codes);
  for (std::int64_t i = 0; i < w.group_size; ++i)
    out[i] = std::fma(static_cast<float>(codes[i]), grid.scale, grid.bias);
}

/// The nearest e4m3 value, ties to even, at most 448 in size.
float nearest_e4m3(float x) {
  constexpr float kLargest = 448.0F;
  constexpr float kLeastNormal = 0x1p-6F;
  constexpr float kToSubnormal = 0x1.8p14F;  // adding it rounds to multiples of 2^-9
  const float size = std::fabs(x);
  if (size >= kLargest) return std::copysign(kLargest, x);
  if (size < kLeastNormal) return std::copysign((size + kToSubnormal) - kToSubnormal, x);
  const auto bits = std::bit_cast<std::uint32_t>(x);  // NaN comes here: its lower mantissa bits round to some NaN
  return std::bit_cast<float>((bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000U);
}

}  // namespace

void decode_row(const MatrixView& w, std::int64_t row, float* out) {
  const auto* bytes = static_cast<const std::uint8_t*>(w.data) + row * row_bytes(w);
  switch (w.format) {
    case Format::f32:
      std::memcpy(out, bytes, static_cast<std::size_t>(row_bytes(w)));
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
      for (std::int64_t first = 0; first < w.n_cols; first += block) {
        std::int64_t block_col = KALIBRI_MUTATE(first / block, "fp8_scale_col0_only", 0) % blocks_per_row;
        block_col = KALIBRI_MUTATE(block_col, "fp8_scale_first_block", 0);
        const float scale = scales[block_col];
        const std::int64_t end = std::min(w.n_cols, first + block);
        for (std::int64_t j = first; j < end; ++j) out[j] = decode_e4m3(bytes[j], scale);
      }
      return;
    }
    case Format::affine:
      for (std::int64_t first = 0; first < w.n_cols; first += w.group_size) {
        decode_group(w, bytes + first * w.bits / 8, stored_grid(w, row, first / w.group_size), out + first);
      }
      return;
  }
}

void round_to_bf16(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

void quantise_e4m3_groups(const float* x, std::int64_t n, float* y) {
  constexpr float kLeastRange = 1e-10F;
  for (std::int64_t first = 0; first < n; first += kFp8Block) {
    const std::int64_t end = std::min(n, first + kFp8Block);
    float largest = kLeastRange;
    bool is_finite = true;
    for (std::int64_t i = first; i < end; ++i) {
      largest = std::max(largest, std::fabs(x[i]));
      is_finite = is_finite && std::isfinite(x[i]);
    }
    const float scale = is_finite ? largest / 448.0F : std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t i = first; i < end; ++i) y[i] = is_finite ? nearest_e4m3(x[i] / scale) * scale : scale;
  }
}

bool round_row(const MatrixView& w, std::int64_t row, std::uint16_t* out) {
  std::vector<float> values(static_cast<std::size_t>(w.n_cols));
  decode_row(w, row, values.data());
  for (std::size_t j = 0; j < values.size(); ++j) out[j] = f32_to_bf16(values[j]);
  std::uint16_t seen = 0;  // bit 15: an exponent of ones, which makes NaN or an infinity
  for (std::int64_t j = 0; j < w.n_cols; ++j) seen |= static_cast<std::uint16_t>((out[j] & 0x7f80) + 0x80);
  return (seen & 0x8000) == 0;
}

bool quantise_row(const MatrixView& w, std::int64_t row, const AffineTarget& target, unsigned char* codes,
                  std::uint16_t* scales, std::uint16_t* biases) {
  std::vector<std::uint16_t> rounded(static_cast<std::size_t>(w.n_cols));
  if (!round_row(w, row, rounded.data())) return false;
  for (std::int64_t first = 0; first < w.n_cols; first += target.group_size) {
    float values[kLargestAffineGroup];
    std::uint8_t group[kLargestAffineGroup];
    for (std::int64_t i = 0; i < target.group_size; ++i) {
      values[i] = bf16_to_f32(rounded[static_cast<std::size_t>(first + i)]);
    }
    const AffineGrid grid = quantise_group(values, target.group_size, target.bits, target.rule, group);
    pack_codes(group, target.group_size, target.bits, codes + first * target.bits / 8);
    scales[first / target.group_size] = f32_to_bf16(grid.scale);
    biases[first / target.group_size] = f32_to_bf16(grid.bias);
    if ((scales[first / target.group_size] & 0x7f80) == 0x7f80) return false;  // the group's range is no f32
  }
  return true;
}

}  // namespace kalibri::kernels
