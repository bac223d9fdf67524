#include "reference/training/optimiser.hpp"

#include <algorithm>
#include <cmath>

namespace kalibri::reference::training {

Adam::Adam(const ParameterTable& table, AdamSettings settings)
    : mean(static_cast<std::size_t>(table.n_elements)),
      square(static_cast<std::size_t>(table.n_elements)),
      parameters_(table.parameters),
      settings_(settings) {}

double Adam::step(std::span<float> values, std::span<const float> grads, std::int64_t step, double rate) {
  double sum = 0;
  for (const float g : grads) sum += static_cast<double>(g) * static_cast<double>(g);
  const double norm = std::sqrt(sum);
  const auto scale = static_cast<float>(std::min(1.0, settings_.max_norm / (norm + 1e-12)));
  const auto beta1 = static_cast<float>(settings_.beta1);
  const auto beta2 = static_cast<float>(settings_.beta2);
  const auto eps = static_cast<float>(settings_.eps);
  const auto n = static_cast<double>(step);
  const auto mean_rate = static_cast<float>(rate / (1 - std::pow(settings_.beta1, n)));
  const auto square_scale = static_cast<float>(1 / (1 - std::pow(settings_.beta2, n)));
  for (const Parameter& p : parameters_) {
    if (!p.is_learnt) continue;
    const auto begin = static_cast<std::size_t>(p.offset);
    const auto end = begin + static_cast<std::size_t>(p.n_elements);
    const auto keep = static_cast<float>(p.decays ? 1 - rate * settings_.weight_decay : 1);
    for (std::size_t i = begin; i < end; ++i) {
      const float g = grads[i] * scale;
      mean[i] = beta1 * mean[i] + (1 - beta1) * g;
      square[i] = beta2 * square[i] + (1 - beta2) * g * g;
      values[i] = keep * values[i] - mean_rate * mean[i] / (std::sqrt(square[i] * square_scale) + eps);
    }
  }
  return norm;
}

double learning_rate(double peak, std::int64_t step, std::int64_t n_warmup, std::int64_t n_steps) {
  const auto s = static_cast<double>(step);
  const auto n = static_cast<double>(n_steps);
  const double rise = std::min(1.0, s / static_cast<double>(n_warmup));
  const double fall = std::min(1.0, std::max(0.05, (n - s) / (n / 3)));
  return peak * std::min(rise, fall);
}

}  // namespace kalibri::reference::training
