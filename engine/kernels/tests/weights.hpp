// Random stored weights of every format, for the tests of products.
#pragma once

#include <vector>

#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels::test {

/// A stored format; the last three are the affine formats'.
struct Kind {
  Format format = Format::f32;
  std::int32_t bits = 0;
  std::int32_t group_size = 0;
  Format grid_format = Format::bf16;

  /// The least number of columns from n on that a row can have.
  [[nodiscard]] std::int64_t n_cols_from(std::int64_t n) const {
    return format == Format::affine ? (n + group_size - 1) / group_size * group_size : n;
  }
};

inline const std::vector<Kind> kKinds = {{Format::f32},
                                         {Format::bf16},
                                         {Format::e4m3_block},
                                         {Format::affine, 2, 32, Format::bf16},
                                         {Format::affine, 3, 64, Format::f32},
                                         {Format::affine, 4, 128, Format::bf16},
                                         {Format::affine, 5, 32, Format::f32},
                                         {Format::affine, 6, 64, Format::bf16},
                                         {Format::affine, 8, 128, Format::f32}};

inline std::vector<Kind> all_affine_kinds() {
  std::vector<Kind> kinds;
  for (const std::int32_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const std::int32_t group_size : {32, 64, 128}) {
      for (const Format grid : {Format::bf16, Format::f32}) kinds.push_back({Format::affine, bits, group_size, grid});
    }
  }
  return kinds;
}

/// Stored weights with their scales, in guarded memory.
struct Weights {
  Weights(Format format, std::int64_t n_rows, std::int64_t n_cols, const std::vector<unsigned char>& bytes,
          const std::vector<float>& scales, std::int64_t gap)
      : data(bytes, gap),
        scale_inv(scales, 0),
        grid_scales(0),
        grid_biases(0),
        view{.format = format, .n_rows = n_rows, .n_cols = n_cols, .data = data.data(), .scale_inv = scale_inv.data()} {
  }
  Weights(const Kind& kind, std::int64_t n_rows, std::int64_t n_cols, const std::vector<unsigned char>& bytes,
          const std::vector<unsigned char>& scales, const std::vector<unsigned char>& biases, std::int64_t gap)
      : data(bytes, gap),
        scale_inv(0),
        grid_scales(scales, gap + 1),
        grid_biases(biases, 3 * gap),
        view{.format = kind.format,
             .n_rows = n_rows,
             .n_cols = n_cols,
             .data = data.data(),
             .bits = kind.bits,
             .group_size = kind.group_size,
             .scales = grid_scales.data(),
             .biases = grid_biases.data(),
             .grid_format = kind.grid_format} {}
  Guarded<unsigned char> data;
  Guarded<float> scale_inv;
  Guarded<unsigned char> grid_scales, grid_biases;
  MatrixView view;
};

inline std::int64_t n_blocks(std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

inline std::vector<float> positive_vector(Generator& random, std::int64_t n) {
  std::vector<float> values = uniform_vector(random, n);
  for (float& value : values) value = std::fabs(value);
  return values;
}

/// f32 or bf16 values (truncated).
inline std::vector<unsigned char> float_bytes(const std::vector<float>& values, Format format) {
  std::vector<unsigned char> bytes;
  for (const float value : values) {
    for (int k = format == Format::f32 ? 0 : 2; k < 4; ++k)
      bytes.push_back(static_cast<unsigned char>(bits(value) >> 8 * k));
  }
  return bytes;
}

inline std::vector<unsigned char> random_bytes(Generator& random, std::int64_t n) {
  std::vector<unsigned char> bytes;
  for (std::int64_t i = 0; i < n; ++i) bytes.push_back(static_cast<unsigned char>(random.next()));
  return bytes;
}

inline std::vector<unsigned char> random_weight_bytes(Generator& random, Format format, std::int64_t n) {
  if (format != Format::e4m3_block) return float_bytes(uniform_vector(random, n), format);
  std::vector<unsigned char> codes = random_bytes(random, n);
  for (unsigned char& code : codes) code = (code & 0x7f) == 0x7f ? 0x01 : code;
  return codes;
}

inline Weights random_weights(Generator& random, const Kind& kind, std::int64_t n_rows, std::int64_t n_cols,
                              std::int64_t gap) {
  if (kind.format == Format::affine) {
    const std::int64_t n_groups = n_rows * n_cols / kind.group_size;
    const std::vector<unsigned char> codes = random_bytes(random, n_rows * n_cols * kind.bits / 8);
    const std::vector<unsigned char> scales = float_bytes(uniform_vector(random, n_groups), kind.grid_format);
    return {kind, n_rows, n_cols, codes, scales, float_bytes(uniform_vector(random, n_groups), kind.grid_format), gap};
  }
  const std::vector<float> scales = positive_vector(random, n_blocks(n_rows) * n_blocks(n_cols));
  return {kind.format, n_rows, n_cols, random_weight_bytes(random, kind.format, n_rows * n_cols), scales, gap};
}

}  // namespace kalibri::kernels::test
