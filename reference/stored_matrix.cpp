#include "reference/stored_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "reference/affine_config.hpp"
#include "reference/error.hpp"
#include "reference/mapped_file.hpp"
#include "reference/number_formats.hpp"

namespace kalibri::reference {
namespace {

constexpr std::int64_t kScaleBlock = 128;
constexpr float kTooLargeScale = 65536;
constexpr std::string_view kBf16 = "BF16";
constexpr std::string_view kF16 = "F16";
constexpr std::string_view kF32 = "F32";
constexpr std::string_view kE4m3 = "F8_E4M3";
constexpr std::string_view kU32 = "U32";

/// Element `i` of a file's bytes, which need not be aligned.
template <typename Stored>
Stored element(const std::byte* bytes, std::int64_t i) {
  Stored value;
  std::memcpy(&value, bytes + i * static_cast<std::int64_t>(sizeof(Stored)), sizeof(Stored));
  return value;
}

/// Element `i` of a bf16, f16 or f32 tensor.
float float_element(const TensorView& view, std::int64_t i) {
  const std::byte* bytes = view.bytes.data();
  if (view.dtype == kF32) return element<float>(bytes, i);
  const auto code = element<std::uint16_t>(bytes, i);
  return view.dtype == kF16 ? decode_f16(code) : decode_bf16(code);
}

std::array<float, 256> e4m3_table() {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = decode_e4m3(static_cast<std::uint8_t>(code));
  return values;
}

/// One row of FP8: value(i, j) = e4m3(code(i, j)) * scale_inv[i / 128, j / 128], or * scale, the product in f32.
void decode_e4m3_row(const StoredMatrix& matrix, std::int64_t row, std::span<float> out) {
  static const std::array<float, 256> kValues = e4m3_table();
  const std::span<const std::byte> codes = stored_rows(matrix, row, 1);
  const std::int64_t first_scale = row / kScaleBlock * ((matrix.n_cols + kScaleBlock - 1) / kScaleBlock);
  for (std::int64_t begin = 0; begin < matrix.n_cols; begin += kScaleBlock) {
    const float scale =
        matrix.scale ? *matrix.scale : float_element(*matrix.scale_inv, first_scale + begin / kScaleBlock);
    const std::int64_t end = std::min(begin + kScaleBlock, matrix.n_cols);
    bool all_numbers = std::isfinite(scale);
    for (auto j = static_cast<std::size_t>(begin); j < static_cast<std::size_t>(end); ++j) {
      const auto code = std::to_integer<std::uint8_t>(codes[j]);
      all_numbers &= (code & 0x7f) != 0x7f;
      out[j] = kValues[code] * scale;
    }
    if (!all_numbers) {
      throw Error(fmt::format("{}: {}: row {}, columns {} to {}: an FP8 code is NaN or the scale {} is not finite",
                              matrix.weight->file, matrix.weight->name, row, begin, end - 1, scale));
    }
  }
}

/// One row of packed codes.
void decode_affine_row(const StoredMatrix& matrix, std::int64_t row, std::span<float> out) {
  const auto [bits, group_size] = matrix.affine;
  const std::span<const std::byte> codes = stored_rows(matrix, row, 1);
  const std::int64_t first_group = (matrix.first_row + row) * (matrix.n_cols / group_size);
  for (std::int64_t begin = 0; begin < matrix.n_cols; begin += group_size) {
    const float scale = float_element(*matrix.scales, first_group + begin / group_size);
    const float bias = float_element(*matrix.biases, first_group + begin / group_size);
    if (!std::isfinite(scale) || !std::isfinite(bias)) {
      throw Error(fmt::format("{}: {}: row {}, columns {} to {}: scale {} or bias {} is not finite",
                              matrix.weight->file, matrix.weight->name, row, begin, begin + group_size - 1, scale,
                              bias));
    }
    for (std::int64_t j = begin; j < begin + group_size; ++j) {
      out[static_cast<std::size_t>(j)] = affine_value(affine_code(codes, bits, j), scale, bias);
    }
  }
}

void decode_row(const StoredMatrix& matrix, std::int64_t row, std::span<float> out) {
  const std::string_view dtype = matrix.weight->dtype;
  if (dtype == kU32) return decode_affine_row(matrix, row, out);
  if (dtype == kE4m3) return decode_e4m3_row(matrix, row, out);
  const std::byte* bytes = stored_rows(matrix, row, 1).data();
  for (std::size_t j = 0; j < out.size(); ++j) {
    const auto i = static_cast<std::int64_t>(j);
    out[j] = dtype == kF32 ? element<float>(bytes, i) : decode_bf16(element<std::uint16_t>(bytes, i));
  }
}

/// Throws Error where tensor `name`, which is not FP8, has block scales all the same: one of the two is wrong.
void refuse_block_scales(const Checkpoint& checkpoint, const TensorView& tensor) {
  const TensorView* stray = checkpoint.find(tensor.name + "_scale_inv");
  if (stray == nullptr) return;
  throw Error(fmt::format("{}: {}: block scales, but {} is {}, expected none or an F8_E4M3 weight", stray->file,
                          stray->name, tensor.name, tensor.dtype));
}

/// The scales of FP8 matrix `weight`, each a number of a size that a weight can have: with 2^16 the largest code would
/// be a weight of 29 million, so one that large is damaged.
const TensorView& find_block_scales(const Checkpoint& checkpoint, const TensorView& weight, std::int64_t n_rows,
                                    std::int64_t n_cols) {
  const std::array shape{(n_rows + kScaleBlock - 1) / kScaleBlock, (n_cols + kScaleBlock - 1) / kScaleBlock};
  const TensorView& scales = checkpoint.require(weight.name + "_scale_inv", shape, std::array{kBf16, kF16, kF32});
  for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    if (const float scale = float_element(scales, i); !(std::fabs(scale) < kTooLargeScale)) {
      throw Error(fmt::format("{}: {}: the scale of block ({}, {}) is {}, expected a number whose size is below {}",
                              scales.file, scales.name, i / shape[1], i % shape[1], scale, kTooLargeScale));
    }
  }
  drop_pages(scales.bytes);  // and what the system has mapped around them
  drop_pages(weight.bytes);
  return scales;
}

/// The packed matrix `name`, its leading axes `rows` (one, or experts and rows); nothing when it is stored plainly.
std::optional<StoredMatrix> find_packed(const Checkpoint& checkpoint, const std::string& name,
                                        const std::vector<std::int64_t>& rows, std::int64_t n_cols) {
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return std::nullopt;
  const std::string module = name.substr(0, name.size() - kWeight.size());
  const std::optional<AffineFormat> format = find_affine_format(checkpoint, module);
  if (!format) return std::nullopt;
  if (n_cols % format->group_size != 0) {
    throw Error(fmt::format("{}: {}: is packed in groups of {}, which do not divide its {} columns",
                            checkpoint.directory().string(), name, format->group_size, n_cols));
  }
  std::vector<std::int64_t> shape = rows;
  shape.push_back(n_cols * format->bits / 32);
  StoredMatrix matrix{&checkpoint.require(name, shape, std::array{kU32}), nullptr, 1, n_cols};
  shape.back() = n_cols / format->group_size;
  matrix.affine = *format;
  matrix.scales = &checkpoint.require(module + ".scales", shape, std::array{kBf16, kF32});
  matrix.biases = &checkpoint.require(module + ".biases", shape, std::array{kBf16, kF32});
  if (matrix.biases->dtype != matrix.scales->dtype) {  // MLX makes both in the dtype of the weight
    throw Error(fmt::format("{}: {}.biases: dtype {}, but the scales are {}", matrix.biases->file, module,
                            matrix.biases->dtype, matrix.scales->dtype));
  }
  refuse_block_scales(checkpoint, *matrix.weight);
  for (const std::int64_t n : rows) matrix.n_rows *= n;
  return matrix;
}

}  // namespace

StoredMatrix find_matrix(const Checkpoint& checkpoint, const std::string& name, std::int64_t n_rows,
                         std::int64_t n_cols) {
  if (const auto packed = find_packed(checkpoint, name, {n_rows}, n_cols)) return *packed;
  const TensorView& weight = checkpoint.require(name, std::array{n_rows, n_cols}, std::array{kBf16, kF32, kE4m3});
  if (weight.dtype == kE4m3) return {&weight, &find_block_scales(checkpoint, weight, n_rows, n_cols), n_rows, n_cols};
  refuse_block_scales(checkpoint, weight);
  return {&weight, nullptr, n_rows, n_cols};
}

StoredMatrix find_vector(const Checkpoint& checkpoint, const std::string& name, std::int64_t n) {
  const TensorView& vector = checkpoint.require(name, std::array{n}, std::array{kBf16, kF32});
  refuse_block_scales(checkpoint, vector);
  return {&vector, nullptr, 1, n};
}

StoredMatrix find_f32_vector(const Checkpoint& checkpoint, const std::string& name, std::int64_t n) {
  const TensorView& vector = checkpoint.require(name, std::array{n}, std::array{kF32});
  refuse_block_scales(checkpoint, vector);
  return {&vector, nullptr, 1, n};
}

StoredMatrix find_stack(const Checkpoint& checkpoint, const std::string& name, std::int64_t a, std::int64_t b,
                        std::int64_t c) {
  if (const auto packed = find_packed(checkpoint, name, {a, b}, c)) return *packed;
  const TensorView& stack = checkpoint.require(name, std::array{a, b, c}, std::array{kBf16, kF32});
  refuse_block_scales(checkpoint, stack);
  return {&stack, nullptr, a * b, c};
}

StoredMatrix in_form(StoredMatrix matrix, const WeightForm& form) {
  matrix.form = form;
  return matrix;
}

StoredMatrix as_router(StoredMatrix matrix, const WeightForm& dense) {
  if (matrix.weight->dtype == kU32) {
    throw Error(fmt::format("{}: {}: is packed, but a router never is; convert the model again with it in bf16",
                            matrix.weight->file, matrix.weight->name));
  }
  using Kind = WeightForm::Kind;
  const bool rounds = matrix.weight->dtype == kE4m3 && (dense.kind == Kind::bf16 || dense.kind == Kind::affine);
  return in_form(matrix, {rounds ? Kind::bf16 : Kind::native, {}, {}});
}

bool is_multiplied_as_fp8(const StoredMatrix& matrix) {
  return matrix.scale_inv != nullptr && matrix.form.kind == WeightForm::Kind::native;
}

std::int64_t affine_group_size(const StoredMatrix& matrix) {
  using Kind = WeightForm::Kind;
  if (matrix.form.kind == Kind::native) return matrix.weight->dtype == kU32 ? matrix.affine.group_size : 0;
  const std::int64_t group_size = matrix.form.affine.group_size;
  return matrix.form.kind == Kind::affine && matrix.n_cols % group_size == 0 ? group_size : 0;
}

StoredMatrix slice_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows) {
  check(first_row >= 0 && first_row + n_rows <= matrix.n_rows && matrix.scale_inv == nullptr, "rows without scales");
  StoredMatrix rows = matrix;
  rows.first_row += first_row;
  rows.n_rows = n_rows;
  return rows;
}

float read_scalar(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView* view = checkpoint.find(name);
  const std::vector<std::int64_t> one(view == nullptr ? 0 : view->shape.size(), 1);
  return float_element(checkpoint.require(name, one, std::array{kBf16, kF16, kF32}), 0);
}

std::span<const std::byte> stored_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows) {
  const std::string_view dtype = matrix.weight->dtype;
  const std::int64_t bits = dtype == kU32 ? matrix.affine.bits : dtype == kF32 ? 32 : dtype == kBf16 ? 16 : 8;
  const std::int64_t row_bytes = matrix.n_cols * bits / 8;
  return matrix.weight->bytes.subspan(static_cast<std::size_t>((matrix.first_row + first_row) * row_bytes),
                                      static_cast<std::size_t>(n_rows * row_bytes));
}

void drop_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows) {
  drop_pages(stored_rows(matrix, first_row, n_rows));
  for (const TensorView* grid : {matrix.scales, matrix.biases}) {
    if (grid == nullptr) continue;
    const std::int64_t row_bytes = matrix.n_cols / matrix.affine.group_size * (grid->dtype == kF32 ? 4 : 2);
    drop_pages(grid->bytes.subspan(static_cast<std::size_t>((matrix.first_row + first_row) * row_bytes),
                                   static_cast<std::size_t>(n_rows * row_bytes)));
  }
}

template <typename T>
void decode_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows, T* out) {
  check(first_row >= 0 && n_rows >= 0 && first_row + n_rows <= matrix.n_rows, "rows of a stored matrix");
  std::vector<float> row(static_cast<std::size_t>(matrix.n_cols));
  for (std::int64_t i = 0; i < n_rows; ++i) {
    decode_row(matrix, first_row + i, row);
    try {
      convert_row(matrix.form, row);
    } catch (const Error& error) {
      throw Error(
          fmt::format("{}: {}: row {}: {}", matrix.weight->file, matrix.weight->name, first_row + i, error.what()));
    }
    std::copy(row.begin(), row.end(), out + i * matrix.n_cols);
  }
}

template void decode_rows(const StoredMatrix&, std::int64_t, std::int64_t, float*);
template void decode_rows(const StoredMatrix&, std::int64_t, std::int64_t, double*);

}  // namespace kalibri::reference
