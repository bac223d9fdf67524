#include "reference/number_formats.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kalibri::reference {
namespace {

constexpr double kLargestE4m3 = 448;

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

double round_to_bf16(double x) {
  constexpr int kDropped = 52 - 7;  // bits of the mantissa
  constexpr std::uint64_t kDroppedBits = (std::uint64_t{1} << kDropped) - 1;
  if (std::isnan(x)) return x;
  if (std::abs(x) < 0x1p-126) return std::nearbyint(x * 0x1p133) * 0x1p-133;  // subnormals are 2^-133 apart
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t half_less_one = (kDroppedBits >> 1) + (bits >> kDropped & 1);
  const auto rounded = std::bit_cast<double>((bits + half_less_one) & ~kDroppedBits);
  return std::abs(rounded) < 0x1p128 ? rounded : std::copysign(std::numeric_limits<double>::infinity(), x);
}

template <typename T>
T round_to_e4m3(T x) {
  if (std::isnan(x)) return x;
  const T magnitude = std::min(std::abs(x), static_cast<T>(kLargestE4m3));
  const int exponent = std::max(std::ilogb(magnitude), -6);  // subnormals have the step of the smallest normals
  const T step = std::ldexp(T{1}, exponent - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

template <typename T>
void round_to_dynamic_fp8(std::span<T> row) {
  constexpr std::size_t kGroup = 128;
  constexpr auto kLeastMaximum = static_cast<T>(1e-10);
  for (std::size_t begin = 0; begin < row.size(); begin += kGroup) {
    const std::span<T> group = row.subspan(begin, std::min(kGroup, row.size() - begin));
    T maximum = kLeastMaximum;
    for (const T x : group) maximum = std::max(maximum, std::abs(x));
    const T s = maximum / static_cast<T>(kLargestE4m3);
    for (T& x : group) x = round_to_e4m3(x / s) * s;
  }
}

template <typename T>
void round_to_integers(std::span<T> row, std::int64_t group_size, std::int32_t max_code) {
  const auto limit = static_cast<T>(max_code);
  const auto n = static_cast<std::size_t>(group_size);
  for (std::size_t begin = 0; begin < row.size(); begin += n) {
    const std::span<T> group = row.subspan(begin, std::min(n, row.size() - begin));
    T maximum = 0;
    for (const T x : group) maximum = std::max(maximum, std::abs(x));
    const T a = maximum / limit;
    if (a == 0) {  // zeros, or so small that a is none
      std::ranges::fill(group, T{0});
      continue;
    }
    for (T& x : group) x = std::nearbyint(std::clamp(x / a, -limit, limit)) * a;
  }
}

template float round_to_e4m3(float);
template double round_to_e4m3(double);
template void round_to_dynamic_fp8(std::span<float>);
template void round_to_dynamic_fp8(std::span<double>);
template void round_to_integers(std::span<float>, std::int64_t, std::int32_t);
template void round_to_integers(std::span<double>, std::int64_t, std::int32_t);

}  // namespace kalibri::reference
