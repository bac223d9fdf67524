#include "reference/affine.hpp"

#include <algorithm>
#include <array>

namespace kalibri::reference {
namespace {

constexpr std::array<std::int64_t, 6> kBits = {2, 3, 4, 5, 6, 8};
constexpr std::array<std::int64_t, 3> kGroupSizes = {32, 64, 128};

}  // namespace

bool exists(const AffineFormat& format) {
  return std::ranges::find(kBits, format.bits) != kBits.end() &&
         std::ranges::find(kGroupSizes, format.group_size) != kGroupSizes.end();
}

int affine_code(std::span<const std::byte> row, std::int64_t bits, std::int64_t k) {
  const auto first = static_cast<std::size_t>(k * bits / 8);
  const auto shift = static_cast<int>(k * bits % 8);
  int window = std::to_integer<int>(row[first]);
  if (shift + bits > 8) window |= std::to_integer<int>(row[first + 1]) << 8;
  return window >> shift & ((1 << bits) - 1);
}

float affine_value(int code, float scale, float bias) {
  const float product = static_cast<float>(code) * scale;
  return product + bias;
}

}  // namespace kalibri::reference
