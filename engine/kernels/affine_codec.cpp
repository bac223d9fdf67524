#include "engine/kernels/affine_codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/kernels/scalar_math.hpp"

namespace kalibri::kernels {

namespace {

constexpr float kSmallestScale = 1e-7F;
constexpr float kRoundToInteger = 0x1.8p23F;  // adding it rounds 0 <= x < 2^22 to an integer, ties to even
constexpr std::int64_t kCodesAtOnce = 8;      // they fill whole bytes, whatever their bits

/// Nearest integer of any x.
float nearest(float x, AffineRule rule) { return rule == AffineRule::cpu ? std::nearbyint(x) : std::round(x); }

/// round(clamp(x, 0, n)): the same as clamping what was rounded.
std::uint8_t to_code(float x, float n, AffineRule rule) {
  const float clamped = std::min(std::max(x, 0.0F), n);
  float code = (clamped + kRoundToInteger) - kRoundToInteger;
  if (rule == AffineRule::gpu && clamped - code == 0.5F) code += 1;  // a tie that went down to an even number
  return static_cast<std::uint8_t>(code);
}

AffineGrid grid_of(const float* w, std::int64_t group_size, float n, AffineRule rule) {
  // Eight of each side by side, which is the same and one vector.
  constexpr std::int64_t kLanes = 8;
  float mosts[kLanes], leasts[kLanes];
  std::copy_n(w, kLanes, mosts);
  std::copy_n(w, kLanes, leasts);
  for (std::int64_t i = kLanes; i < group_size; i += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) {
      mosts[k] = std::max(mosts[k], w[i + k]);
      leasts[k] = std::min(leasts[k], w[i + k]);
    }
  }
  const float largest = *std::max_element(mosts, mosts + kLanes);
  const float most = rule == AffineRule::cpu ? largest : std::max(largest, 0.0F);
  const float least = *std::min_element(leasts, leasts + kLanes);
  const bool from_below = std::fabs(least) > std::fabs(most);
  const float edge = from_below ? least : most;
  const float step = std::max((most - least) / n, kSmallestScale);
  const float scale = from_below ? step : -step;
  const float code_of_zero = nearest(edge / scale, rule);
  return code_of_zero != 0 ? AffineGrid{edge / code_of_zero, edge} : AffineGrid{scale, 0};
}

float load_grid_value(const MatrixView& w, const void* values, std::int64_t index) {
  if (w.grid_format == Format::f32) {
    float value = 0;
    std::memcpy(&value, static_cast<const char*>(values) + index * 4, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(values) + index * 2, 2);
  return bf16_to_f32(bits);
}

}  // namespace

bool is_affine_bits(std::int64_t bits) { return (bits >= 2 && bits <= 6) || bits == 8; }

bool is_affine_group(std::int64_t group_size) { return group_size == 32 || group_size == 64 || group_size == 128; }

AffineGrid quantise_group(const float* w, std::int64_t group_size, std::int64_t bits, AffineRule rule,
                          std::uint8_t* codes) {
  const auto n = static_cast<float>((1 << bits) - 1);
  const AffineGrid grid = grid_of(w, group_size, n, rule);
  const auto quantise = [=](AffineRule of) {
    for (std::int64_t i = 0; i < group_size; ++i) codes[i] = to_code((w[i] - grid.bias) / grid.scale, n, of);
  };
  if (rule == AffineRule::cpu) {
    quantise(AffineRule::cpu);
  } else {
    quantise(AffineRule::gpu);
  }
  return grid;
}

void pack_codes(const std::uint8_t* codes, std::int64_t n, std::int64_t bits, unsigned char* packed) {
  for (std::int64_t i = 0; i < n; i += kCodesAtOnce, packed += bits) {
    std::uint64_t word = 0;
    for (std::int64_t k = 0; k < kCodesAtOnce; ++k) word |= std::uint64_t{codes[i + k]} << k * bits;
    for (std::int64_t byte = 0; byte < bits; ++byte) packed[byte] = static_cast<unsigned char>(word >> 8 * byte);
  }
}

void unpack_codes(const unsigned char* packed, std::int64_t n, std::int64_t bits, std::uint8_t* codes) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (std::int64_t i = 0; i < n; i += kCodesAtOnce, packed += bits) {
    std::uint64_t word = 0;
    for (std::int64_t byte = 0; byte < bits; ++byte) word |= std::uint64_t{packed[byte]} << 8 * byte;
    for (std::int64_t k = 0; k < kCodesAtOnce; ++k) codes[i + k] = static_cast<std::uint8_t>(word >> k * bits & mask);
  }
}

AffineGrid stored_grid(const MatrixView& w, std::int64_t row, std::int64_t group) {
  const std::int64_t index = row * (w.n_cols / w.group_size) + group;
  return {load_grid_value(w, w.scales, index), load_grid_value(w, w.biases, index)};
}

}  // namespace kalibri::kernels
