// The arithmetic that a precision asks for: which results are rounded to bf16, and which inputs to FP8 or integers. All
// tensors are f32 or f64; rounding is explicit and applied, once, to the result of an operation that was computed in
// full: in f64 the same numbers are rounded to the same formats, and only what is summed between is more exact.
#pragma once

#include <functional>

#include "reference/precision.hpp"
#include "reference/tensor.hpp"

namespace kalibri::reference {

/// A weight [n_out, n_in], decoded.
class Linear {
 public:
  /// What becomes of the tokens' activations [T, n_in] before they are multiplied; empty: nothing.
  using RoundInput = std::function<at::Tensor(const at::Tensor&)>;
  Linear(at::Tensor weight, RoundInput round) : weight_(std::move(weight)), round_(std::move(round)) {}

  /// x [T, n_in] -> [T, n_out], not rounded.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  RoundInput round_;
};

class Rounding {
 public:
  Rounding(const Precision& precision, at::ScalarType dtype) : precision_(precision), dtype_(dtype) {}

  [[nodiscard]] const Precision& precision() const { return precision_; }
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }

  /// The result of an operation.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const;
  /// One that serving stacks keep in f32: expert weights, products with them, logits.
  [[nodiscard]] at::Tensor unless_served(const at::Tensor& x) const;
  /// Keys or values on their way into the cache.
  [[nodiscard]] at::Tensor kv(const at::Tensor& x) const;
  /// residual + branch. What is handed on is the sum as the next norm reads it: with bf16-fused it is not rounded, and
  /// it is here, where the next branch is added, that its rounded value counts.
  [[nodiscard]] at::Tensor add(const at::Tensor& residual, const at::Tensor& branch) const;

  [[nodiscard]] at::Tensor load(const StoredMatrix& matrix) const { return reference::load(matrix, dtype_); }
  [[nodiscard]] Linear linear(const StoredMatrix& matrix) const;

 private:
  Precision precision_;
  at::ScalarType dtype_;
};

}  // namespace kalibri::reference
