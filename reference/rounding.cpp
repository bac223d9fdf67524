#include "reference/rounding.hpp"

#include <span>

#include "reference/number_formats.hpp"

namespace kalibri::reference {
namespace {

/// A copy of x [..., n] whose rows round(std::span<T>) has rounded, T the elements' type.
template <typename Round>
at::Tensor rounded_rows(const at::Tensor& x, const Round& round) {
  at::Tensor rows = x.clone(at::MemoryFormat::Contiguous);
  const auto all = [&](auto* values) {
    const std::int64_t n = x.size(-1);
    for (auto* row = values; row != values + x.numel(); row += n) round(std::span(row, static_cast<std::size_t>(n)));
  };
  x.scalar_type() == at::kDouble ? all(rows.data_ptr<double>()) : all(rows.data_ptr<float>());
  return rows;
}

at::Tensor to_bf16(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return x.to(at::kBFloat16).to(at::kFloat);
  return rounded_rows(x, [](auto row) {  // LibTorch rounds an f64 twice, to f32 first
    for (auto& value : row) value = round_to_bf16(value);
  });
}

}  // namespace

at::Tensor Linear::operator()(const at::Tensor& x) const { return project(round_ ? round_(x) : x, weight_); }

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
  Linear::RoundInput round;
  const std::int64_t group_size = affine_group_size(matrix);
  switch (precision_.activations) {
    case Activations::f32:
      break;
    case Activations::fp8_dynamic:
      if (!is_multiplied_as_fp8(matrix)) break;
      round = [](const at::Tensor& x) { return rounded_rows(x, [](auto row) { round_to_dynamic_fp8(row); }); };
      break;
    case Activations::int16:
    case Activations::int8:
      if (group_size == 0) break;
      const std::int32_t max_code = precision_.activations == Activations::int16 ? 32767 : 127;
      round = [=](const at::Tensor& x) {
        return rounded_rows(x, [=](auto row) { round_to_integers(row, group_size, max_code); });
      };
      break;
  }
  return {load(matrix), round};
}

}  // namespace kalibri::reference
