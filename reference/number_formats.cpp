#include "reference/number_formats.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kalibri::reference {
namespace {

constexpr float kLargestE4m3 = 448.0F;

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

float round_to_bf16(float x) {
  if (std::isnan(x)) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t half_less_one = 0x7fff + (bits >> 16 & 1);  // a tie goes up only from an odd code
  return std::bit_cast<float>((bits + half_less_one) & 0xffff0000);
}

float round_to_e4m3(float x) {
  if (std::isnan(x)) return x;
  const float magnitude = std::min(std::abs(x), kLargestE4m3);
  const int exponent = std::max(std::ilogb(magnitude), -6);  // subnormals have the step of the smallest normals
  const float step = std::ldexp(1.0F, exponent - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

void round_to_dynamic_fp8(std::span<float> row) {
  constexpr std::size_t kGroup = 128;
  constexpr float kLeastMaximum = 1e-10F;
  for (std::size_t begin = 0; begin < row.size(); begin += kGroup) {
    const std::span<float> group = row.subspan(begin, std::min(kGroup, row.size() - begin));
    float maximum = kLeastMaximum;
    for (const float x : group) maximum = std::max(maximum, std::abs(x));
    const float s = maximum / kLargestE4m3;
    for (float& x : group) x = round_to_e4m3(x / s) * s;
  }
}

void round_to_integers(std::span<float> row, std::int64_t group_size, std::int32_t max_code) {
  const auto limit = static_cast<float>(max_code);
  const auto n = static_cast<std::size_t>(group_size);
  for (std::size_t begin = 0; begin < row.size(); begin += n) {
    const std::span<float> group = row.subspan(begin, std::min(n, row.size() - begin));
    float maximum = 0;
    for (const float x : group) maximum = std::max(maximum, std::abs(x));
    const float a = maximum / limit;
    if (a == 0) {  // zeros, or so small that a is none
      std::ranges::fill(group, 0.0F);
      continue;
    }
    for (float& x : group) x = std::nearbyint(std::clamp(x / a, -limit, limit)) * a;
  }
}

}  // namespace kalibri::reference
