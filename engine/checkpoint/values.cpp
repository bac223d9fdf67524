#include "engine/checkpoint/values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/kernels/scalar_math.hpp"

namespace kalibri::checkpoint {

namespace {

/// Index of the first element all of whose `mask` bits are set, or -1.
template <typename Word>
std::int64_t find_masked(std::span<const std::byte> bytes, Word mask) {
  constexpr std::size_t kStride = 4096;  // elements looked at as a whole first: the inner loop has no branch
  const std::size_t n = bytes.size() / sizeof(Word);
  const auto is_bad = [&](std::size_t i) {
    Word word{};
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    return (word & mask) == mask;
  };
  for (std::size_t begin = 0; begin < n; begin += kStride) {
    const std::size_t end = std::min(n, begin + kStride);
    Word any = 0;  // as wide as an element, so that a vector holds many
    for (std::size_t i = begin; i < end; ++i) any = static_cast<Word>(any | static_cast<Word>(is_bad(i)));
    if (any == 0) continue;
    std::size_t first = begin;
    while (!is_bad(first)) ++first;
    return static_cast<std::int64_t>(first);
  }
  return -1;
}

float f16_to_f32(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto mantissa = static_cast<float>(bits & 0x3ff);
  float value = 0;
  if (exponent == 31) {
    value = mantissa == 0 ? HUGE_VALF : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace

std::vector<std::byte> read_bytes(const TensorView& tensor, std::int64_t first, std::int64_t n) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n));
  tensor.file->read(static_cast<std::uint64_t>(tensor.file_offset + first), bytes);
  return bytes;
}

std::vector<float> read_widened(const TensorView& tensor) {
  const std::vector<std::byte> bytes = read_bytes(tensor, 0, static_cast<std::int64_t>(tensor.bytes.size()));
  std::vector<float> values(static_cast<std::size_t>(tensor.n_elements()));
  if (values.empty()) return values;
  if (tensor.dtype == Dtype::f32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
    values[i] = tensor.dtype == Dtype::bf16 ? kernels::bf16_to_f32(bits) : f16_to_f32(bits);
  }
  return values;
}

std::int64_t find_not_finite(const TensorView& tensor) {
  switch (tensor.dtype) {
    case Dtype::f32:
      return find_masked<std::uint32_t>(tensor.bytes, 0x7f800000);
    case Dtype::bf16:
      return find_masked<std::uint16_t>(tensor.bytes, 0x7f80);
    case Dtype::f16:
      return find_masked<std::uint16_t>(tensor.bytes, 0x7c00);
    case Dtype::f8_e4m3:
      return find_masked<std::uint8_t>(tensor.bytes, 0x7f);
    default:
      return -1;
  }
}

std::string index_text(std::int64_t index, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return fmt::format("({})", fmt::join(at, ", "));
}

}  // namespace kalibri::checkpoint
