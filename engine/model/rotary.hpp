// Rotary position embedding: the tables of cosines and sines for a run of positions. The rotation itself is a kernel.
#pragma once

#include <cstdint>
#include <vector>

namespace kalibri::model {

class RotaryTable {
 public:
  /// rotary_dim: components that rotate (even); component i is paired with i + rotary_dim / 2.
  RotaryTable(std::int64_t rotary_dim, double theta);

  /// Fills the rows of positions [first_pos, first_pos + n); a repeated call for the same positions costs nothing.
  /// theta_i = fl32(theta^(-2 i / rotary_dim)), angle = fl32(fl32(pos) * theta_i). Source: spec/kolibri1.md 3.1.3.
  void prepare(std::int64_t first_pos, std::int64_t n);

  /// Tables [half] of a prepared position.
  [[nodiscard]] const float* cosines(std::int64_t pos) const { return cos_.data() + (pos - first_pos_) * half_; }
  [[nodiscard]] const float* sines(std::int64_t pos) const { return sin_.data() + (pos - first_pos_) * half_; }
  [[nodiscard]] std::int64_t half() const { return half_; }

 private:
  std::int64_t half_;
  std::vector<float> frequencies_;  // theta_i
  std::int64_t first_pos_ = 0;
  std::int64_t n_ = 0;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace kalibri::model
