#include "reference/rounding.hpp"

#include <fmt/format.h>

#include "reference/error.hpp"
#include "reference/number_formats.hpp"

namespace kalibri::reference {
namespace {

at::Tensor to_bf16(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }

at::Tensor rounded_rows(const at::Tensor& x, const Linear::RoundRow& round) {
  at::Tensor rows = x.clone(at::MemoryFormat::Contiguous);
  const auto n_cols = static_cast<std::size_t>(x.size(1));
  for (std::int64_t row = 0; row < x.size(0); ++row) {
    round({rows.data_ptr<float>() + row * x.size(1), n_cols});
  }
  return rows;
}

}  // namespace

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return project(round_ ? rounded_rows(x, round_) : x, weight_);
}

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
  Linear::RoundRow round;
  const std::int64_t group_size = affine_group_size(matrix);
  switch (precision_.activations) {
    case Activations::f32:
      break;
    case Activations::fp8_dynamic:
      if (is_multiplied_as_fp8(matrix)) round = round_to_dynamic_fp8;
      break;
    case Activations::int16:
    case Activations::int8:
      if (group_size == 0) break;
      const std::int32_t max_code = precision_.activations == Activations::int16 ? 32767 : 127;
      round = [=](std::span<float> row) { round_to_integers(row, group_size, max_code); };
      break;
  }
  return {load(matrix), round};
}

}  // namespace kalibri::reference
