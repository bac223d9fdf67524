#include "reference/affine.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kalibri::reference {
namespace {

constexpr std::array<std::int64_t, 6> kBits = {2, 3, 4, 5, 6, 8};
constexpr std::array<std::int64_t, 3> kGroupSizes = {32, 64, 128};

/// Half to even; or half away from zero.
float round_by(AffineRule rule, float x) { return rule == AffineRule::gpu ? std::round(x) : std::nearbyint(x); }

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

AffineGrid quantise_group(std::span<const float> w, std::int64_t bits, AffineRule rule, std::span<int> codes) {
  constexpr float kEps = 1e-7F;
  const auto n = static_cast<float>((1 << bits) - 1);
  float w_max = rule == AffineRule::gpu ? 0.0F : -std::numeric_limits<float>::infinity();
  float w_min = std::numeric_limits<float>::max();
  for (const float x : w) {
    w_max = std::max(w_max, x);
    w_min = std::min(w_min, x);
  }
  const bool min_is_larger = std::abs(w_min) > std::abs(w_max);
  const float step = std::max((w_max - w_min) / n, kEps);
  const float edge = min_is_larger ? w_min : w_max;
  AffineGrid grid{min_is_larger ? step : -step, 0.0F};
  const float q0 = round_by(rule, edge / grid.scale);
  if (q0 != 0.0F) grid = {edge / q0, edge};
  for (std::size_t i = 0; i < w.size(); ++i) {
    codes[i] = static_cast<int>(std::clamp(round_by(rule, (w[i] - grid.bias) / grid.scale), 0.0F, n));
  }
  return grid;
}

}  // namespace kalibri::reference
