// Rotary position embedding: the tables of cosines and sines for a run of positions. The rotation itself is a kernel.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace kalibri::model {

/// A token's place on the axes t, h, w; text has the same number on all three.
using AxisPositions = std::array<std::int64_t, 3>;

class RotaryTable {
 public:
  /// rotary_dim: components that rotate (even); component i is paired with i + rotary_dim / 2 and turns with the axis
  /// axis_of_frequency[i] (0, 1, 2); empty: all with the first. `rounds`: cosines and sines are rounded to bf16.
  RotaryTable(std::int64_t rotary_dim, double theta, std::vector<std::size_t> axis_of_frequency = {},
              bool rounds = false);

  /// cos, sin [half] for one position: theta_i = fl32(theta^(-2 i / rotary_dim)), angle = fl32(fl32(pos) * theta_i).
  /// Source: Su et al., RoFormer (2021), equation 34, halves paired; axes: transformers, modeling_qwen4_exp.py.
  void row(const AxisPositions& position, float* cos, float* sin) const;

  /// Keeps the rows of n positions from first_pos on, for text, or for positions given one by one.
  void prepare(std::int64_t first_pos, std::int64_t n);
  void prepare(std::int64_t first_pos, const std::vector<AxisPositions>& positions);

  /// Tables [half] of a prepared position.
  [[nodiscard]] const float* cosines(std::int64_t pos) const { return cos_.data() + (pos - first_pos_) * half_; }
  [[nodiscard]] const float* sines(std::int64_t pos) const { return sin_.data() + (pos - first_pos_) * half_; }
  [[nodiscard]] std::int64_t half() const { return half_; }

 private:
  std::int64_t half_;
  std::vector<std::size_t> axis_;
  bool rounds_;
  std::vector<float> frequencies_;  // theta_i
  std::int64_t first_pos_ = 0;
  std::vector<AxisPositions> positions_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

#ifdef KALIBRI_MUTANTS
/// A wrong rotation, for deliberate defects: pairs (2i, 2i + 1) instead of (i, i + half).
void rope_neighbours(float* x, const float* cos, const float* sin, std::int64_t half);
#endif

}  // namespace kalibri::model
