#include "reference/rounding.hpp"

#include <fmt/format.h>

#include "reference/error.hpp"
#include "reference/number_formats.hpp"

namespace kalibri::reference {
namespace {

at::Tensor to_bf16(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }

/// Every row, in groups of its own.
at::Tensor quantised(const at::Tensor& x) {
  at::Tensor rows = x.clone(at::MemoryFormat::Contiguous);
  const auto n_cols = static_cast<std::size_t>(x.size(1));
  for (std::int64_t row = 0; row < x.size(0); ++row) {
    round_to_dynamic_fp8({rows.data_ptr<float>() + row * x.size(1), n_cols});
  }
  return rows;
}

}  // namespace

at::Tensor Linear::operator()(const at::Tensor& x) const { return project(quantises_ ? quantised(x) : x, weight_); }

Rounding::Rounding(const Precision& precision, at::ScalarType dtype) : precision_(precision), dtype_(dtype) {
  if (dtype != at::kFloat && !precision.has_f32_arithmetic()) {
    throw Error(fmt::format("--dtype f64: precision '{}' rounds results, which only f32 has; use --dtype f32",
                            precision_text(precision)));
  }
}

at::Tensor Rounding::operator()(const at::Tensor& x) const {
  return precision_.compute == Compute::f32 ? x : to_bf16(x);
}

at::Tensor Rounding::unless_served(const at::Tensor& x) const {
  return precision_.compute == Compute::bf16 ? to_bf16(x) : x;
}

at::Tensor Rounding::kv(const at::Tensor& x) const { return precision_.rounds_kv ? to_bf16(x) : x; }

at::Tensor Rounding::add(const at::Tensor& residual, const at::Tensor& branch) const {
  if (precision_.residual == Residual::f32) return residual + branch;
  if (precision_.residual == Residual::bf16) return to_bf16(residual + branch);
  return to_bf16(residual) + branch;
}

Linear Rounding::linear(const StoredMatrix& matrix) const {
  return {load(matrix), precision_.quantises_activations && is_multiplied_as_fp8(matrix)};
}

}  // namespace kalibri::reference
