// What a model under training consists of: names, shapes, and places in one flat array, so that the optimiser and the
// files of a run know no tensor. Routed experts are stacked, [experts, rows, columns]; the rest is named as in the
// released checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kalibri::reference::training {

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // in the flat array
  std::int64_t n_elements = 0;
  float mean = 0, spread = 0;  // of the normal distribution that it begins with
  bool is_learnt = true;       // by gradient; else it is set by the training loop, as expert biases are
  bool decays = true;
};

struct ParameterTable {
  std::vector<Parameter> parameters;
  std::int64_t n_elements = 0;

  /// A matrix, or a stack of them, drawn around `mean`.
  void matrix(std::string name, std::vector<std::int64_t> shape, float spread, float mean = 0) {
    add({std::move(name), std::move(shape), 0, 0, mean, spread, true, true});
  }
  /// A vector (or something else that does not decay) that begins as `value` everywhere.
  void constant(std::string name, std::vector<std::int64_t> shape, float value, bool is_learnt = true) {
    add({std::move(name), std::move(shape), 0, 0, value, 0, is_learnt, false});
  }
  /// A vector that does not decay, drawn around `mean`.
  void vector(std::string name, std::int64_t n, float mean, float spread) {
    add({std::move(name), {n}, 0, 0, mean, spread, true, false});
  }

 private:
  void add(Parameter parameter) {
    parameter.offset = n_elements;
    parameter.n_elements = 1;
    for (const std::int64_t size : parameter.shape) parameter.n_elements *= size;
    n_elements += parameter.n_elements;
    parameters.push_back(std::move(parameter));
  }
};

}  // namespace kalibri::reference::training
