#include "engine/checkpoint/values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

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
    unsigned any = 0;
    for (std::size_t i = begin; i < end; ++i) any |= static_cast<unsigned>(is_bad(i));
    if (any == 0) continue;
    std::size_t first = begin;
    while (!is_bad(first)) ++first;
    return static_cast<std::int64_t>(first);
  }
  return -1;
}

}  // namespace

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
