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
constexpr std::string_view kF32 = "F32";
constexpr std::string_view kE4m3 = "F8_E4M3";

/// Element `i` of a file's bytes, which need not be aligned.
template <typename Stored>
Stored element(const std::byte* bytes, std::int64_t i) {
  Stored value;
  std::memcpy(&value, bytes + i * static_cast<std::int64_t>(sizeof(Stored)), sizeof(Stored));
  return value;
}

std::array<float, 256> e4m3_table() {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = decode_e4m3(static_cast<std::uint8_t>(code));
  return values;
}

/// One row of FP8: value(i, j) = e4m3(code(i, j)) * scale_inv[i / 128, j / 128], the product in f32.
template <typename T>
void decode_e4m3_row(const StoredMatrix& matrix, std::int64_t row, T* out) {
  static const std::array<float, 256> kValues = e4m3_table();
  const std::byte* codes = matrix.weight->bytes.data() + row * matrix.n_cols;
  const std::byte* scales = matrix.scale_inv->bytes.data();
  const std::int64_t first_scale = row / kScaleBlock * matrix.scale_inv->shape[1];
  for (std::int64_t begin = 0; begin < matrix.n_cols; begin += kScaleBlock) {
    const auto scale = element<float>(scales, first_scale + begin / kScaleBlock);
    const std::int64_t end = std::min(begin + kScaleBlock, matrix.n_cols);
    bool all_numbers = std::isfinite(scale);
    for (std::int64_t j = begin; j < end; ++j) {
      const auto code = std::to_integer<std::uint8_t>(codes[j]);
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
  return {&weight, &checkpoint.require(name + "_scale_inv", scale_shape, std::array{kF32}), n_rows, n_cols};
}

StoredMatrix find_vector(const Checkpoint& checkpoint, const std::string& name, std::int64_t n) {
  return {&checkpoint.require(name, std::array{n}, std::array{kBf16, kF32}), nullptr, 1, n};
}

template <typename T>
void decode_rows(const StoredMatrix& matrix, std::int64_t first_row, std::int64_t n_rows, T* out) {
  check(first_row >= 0 && n_rows >= 0 && first_row + n_rows <= matrix.n_rows, "rows of a stored matrix");
  const std::string_view dtype = matrix.weight->dtype;
  const std::byte* bytes = matrix.weight->bytes.data();
  const std::int64_t first = first_row * matrix.n_cols;
  const std::int64_t n = n_rows * matrix.n_cols;
  if (dtype == kBf16) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(decode_bf16(element<std::uint16_t>(bytes, first + i)));
  } else if (dtype == kF32) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(element<float>(bytes, first + i));
  } else {
    check(dtype == kE4m3 && matrix.scale_inv != nullptr, "an FP8 matrix has its scales");
    for (std::int64_t row = 0; row < n_rows; ++row) decode_e4m3_row(matrix, first_row + row, out + row * matrix.n_cols);
  }
}

template void decode_rows(const StoredMatrix&, std::int64_t, std::int64_t, float*);
template void decode_rows(const StoredMatrix&, std::int64_t, std::int64_t, double*);

}  // namespace kalibri::reference
