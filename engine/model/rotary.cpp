#include "engine/model/rotary.hpp"

#include <utility>

#include "engine/kernels/codec.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::model {

RotaryTable::RotaryTable(std::int64_t rotary_dim, double theta, std::vector<std::size_t> axis_of_frequency, bool rounds)
    : half_(rotary_dim / 2), axis_(std::move(axis_of_frequency)), rounds_(rounds) {
  axis_.resize(static_cast<std::size_t>(half_));
  for (std::int64_t i = 0; i < half_; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim);
    frequencies_.push_back(static_cast<float>(kernels::pow_f64(theta, exponent)));
  }
}

void RotaryTable::row(const AxisPositions& position, float* cos, float* sin) const {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    const float angle = static_cast<float>(position[axis_[i]]) * frequencies_[i];
    kernels::sincos_f32(static_cast<double>(angle), cos + i, sin + i);
  }
  if (!rounds_) return;
  kernels::round_to_bf16(cos, half_);
  kernels::round_to_bf16(sin, half_);
}

void RotaryTable::prepare(std::int64_t first_pos, std::int64_t n) {
  std::vector<AxisPositions> positions;
  for (std::int64_t pos = first_pos; pos < first_pos + n; ++pos) positions.push_back({pos, pos, pos});
  prepare(first_pos, positions);
}

void RotaryTable::prepare(std::int64_t first_pos, const std::vector<AxisPositions>& positions) {
  if (first_pos == first_pos_ && positions == positions_) return;  // the layer before had the same tokens
  first_pos_ = first_pos;
  positions_ = positions;
  cos_.resize(positions.size() * static_cast<std::size_t>(half_));
  sin_.resize(cos_.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::size_t at = i * static_cast<std::size_t>(half_);
    row(positions[i], cos_.data() + at, sin_.data() + at);
  }
}

#ifdef KALIBRI_MUTANTS
void rope_neighbours(float* x, const float* cos, const float* sin, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}
#endif

}  // namespace kalibri::model
