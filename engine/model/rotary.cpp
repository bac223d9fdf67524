#include "engine/model/rotary.hpp"

#include "engine/kernels/scalar_math.hpp"

namespace kalibri::model {

RotaryTable::RotaryTable(std::int64_t rotary_dim, double theta) : half_(rotary_dim / 2) {
  for (std::int64_t i = 0; i < half_; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim);
    frequencies_.push_back(static_cast<float>(kernels::pow_f64(theta, exponent)));
  }
}

void RotaryTable::prepare(std::int64_t first_pos, std::int64_t n) {
  if (first_pos == first_pos_ && n == n_) return;
  first_pos_ = first_pos;
  n_ = n;
  cos_.resize(static_cast<std::size_t>(n * half_));
  sin_.resize(static_cast<std::size_t>(n * half_));
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t i = 0; i < half_; ++i) {
      const float angle = static_cast<float>(first_pos + row) * frequencies_[static_cast<std::size_t>(i)];
      const auto at = static_cast<std::size_t>(row * half_ + i);
      kernels::sincos_f32(static_cast<double>(angle), &cos_[at], &sin_[at]);
    }
  }
}

}  // namespace kalibri::model
