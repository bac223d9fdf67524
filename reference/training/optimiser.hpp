// AdamW over a model's flat arrays. Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019),
// algorithm 2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/training/parameters.hpp"

namespace kalibri::reference::training {

struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.05;  // of matrices
  double max_norm = 1;         // gradients of a larger Euclidean norm are scaled down to it
};

class Adam {
 public:
  explicit Adam(const ParameterTable& table, AdamSettings settings = {});

  /// Step number `step`, from 1. What is not learnt stays. Returns the gradients' norm before they were scaled.
  double step(std::span<float> values, std::span<const float> grads, std::int64_t step, double rate);

  /// The running means of gradients and of their squares, as they are kept in a run's file.
  std::vector<float> mean, square;

 private:
  std::vector<Parameter> parameters_;
  AdamSettings settings_;
};

/// Rises over the first steps, stays, and falls to a twentieth of `peak` over the last third. step from 1.
double learning_rate(double peak, std::int64_t step, std::int64_t n_warmup, std::int64_t n_steps);

}  // namespace kalibri::reference::training
