#include "reference/stored_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

constexpr std::int64_t kScaleBlock = 128;
constexpr std::string_view kBf16 = "BF16";
constexpr std::string_view kF16 = "F16";
constexpr std::string_view kF32 = "F32";
constexpr std::string_view kE4m3 = "F8_E4M3";

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
template <typename T>
void decode_e4m3_row(const StoredMatrix& matrix, std::int64_t row, T* out) {
  static const std::array<float, 256> kValues = e4m3_table();
  const std::span<const std::byte> codes = stored_rows(matrix, row, 1);
  const std::int64_t first_scale = row / kScaleBlock * ((matrix.n_cols + kScaleBlock - 1) / kScaleBlock);
  for (std::int64_t begin = 0; begin < matrix.n_cols; begin += kScaleBlock) {
    const float scale =
        matrix.scale ? *matrix.scale : float_element(*matrix.scale_inv, first_scale + begin / kScaleBlock);
    const std::int64_t end = std::min(begin + kScaleBlock, matrix.n_cols);
    bool all_numbers = std::isfinite(scale);
    for (std::int64_t j = begin; j < end; ++j) {
      const auto code = std::to_integer<std::uint8_t>(codes[static_cast<std::size_t>(j)]);
      all_numbers &= (code & 0x7f) != 0x7f;
      out[j] = static_cast<T>(kValues[code] * scale);
    }
    if (!all_numbers) {
      throw Error(fmt::format("{}: {}: row {}, columns {} to {}: an FP8 code is NaN or the scale {} is not finite",
                              matrix.weight->file, matrix.weight->name, row, begin, end - 1, scale));
    }
  }
}

}  // namespace

float decode_bf16(std::uint16_t code) { return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16); }

float decode_f16(std::uint16_t code) {
  const int exponent = code >> 10 & 0x1f;
  const int mantissa = code & 0x3ff;
  float magnitude =
      std::ldexp(static_cast<float>(exponent == 0 ? mantissa : 1024 + mantissa), std::max(exponent, 1) - 25);
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

float decode_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 0xf;
  const int mantissa = code & 0x7;
  if (exponent == 0xf && mantissa == 0x7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 7 - 3);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

StoredMatrix find_matrix(const Checkpoint& checkpoint, const std::string& name, std::int64_t n_rows,
                         std::int64_t n_cols) {
  const TensorView& weight = checkpoint.require(name, std::array{n_rows, n_cols}, std::array{kBf16, kF32, kE4m3});
  if (weight.dtype != kE4m3) return {&weight, nullptr, n_rows, n_cols};
  const std::array scale_shape{(n_rows + kScaleBlock - 1) / kScaleBlock, (n_cols + kScaleBlock - 1) / kScaleBlock};
  return {&weight, &checkpoint.require(name + "_scale_inv", scale_shape, std::array{kBf16, kF16, kF32}), n_rows,
          n_cols};
}

StoredMatrix find_vector(const Checkpoint& checkpoint, const std::string& name, std::int64_t n) {
  return {&checkpoint.require(name, std::array{n}, std::array{kBf16, kF32}), nullptr, 1, n};
}

StoredMatrix find_stack(const Checkpoint& checkpoint, const std::string& name, std::int64_t a, std::int64_t b,
                        std::int64_t c) {
  return {&checkpoint.require(name, std::array{a, b, c}, std::array{kBf16, kF32}), nullptr, a * b, c};
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
  const std::int64_t row_bytes = matrix.n_cols * (dtype == kF32 ? 4 : dtype == kBf16 ? 2 : 1);
  return matrix.weight->bytes.subspan(static_cast<std::size_t>((matrix.first_row + first_row) * row_bytes),
                                      static_cast<std::size_t>(n_rows * row_bytes));
}

template <typename T>
void decode_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows, T* out) {
  check(first_row >= 0 && n_rows >= 0 && first_row + n_rows <= matrix.n_rows, "rows of a stored matrix");
  const std::string_view dtype = matrix.weight->dtype;
  const std::byte* bytes = stored_rows(matrix, first_row, n_rows).data();
  const std::int64_t n = n_rows * matrix.n_cols;
  if (dtype == kBf16) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(decode_bf16(element<std::uint16_t>(bytes, i)));
  } else if (dtype == kF32) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(element<float>(bytes, i));
  } else {
    check(dtype == kE4m3 && (matrix.scale_inv != nullptr || matrix.scale), "an FP8 matrix has its scales");
    for (std::int64_t row = 0; row < n_rows; ++row) decode_e4m3_row(matrix, first_row + row, out + row * matrix.n_cols);
  }
}

template void decode_rows(const StoredMatrix&, std::int64_t, std::int64_t, float*);
template void decode_rows(const StoredMatrix&, std::int64_t, std::int64_t, double*);

}  // namespace kalibri::reference
