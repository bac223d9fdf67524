// The one way in which branches join the streams between layers.
#pragma once

#include <cstdint>

#include "engine/kernels/kernels.hpp"
#include "engine/runtime/linear.hpp"

namespace kalibri::model {

/// residual [n] <- what the arithmetic keeps of it plus `adds(residual)`, which adds a branch to the n floats.
/// bf16: rounded after the addition. bf16_fused: the sum stays unrounded for the norm that reads it next, and it is
/// what was rounded before this addition that the branch is added to.
template <typename Adds>
void add_to_residual(const runtime::Workers& workers, std::int64_t n, float* residual, const Adds& adds) {
  using Residual = runtime::Arithmetic::Residual;
  const Residual kind = workers.arithmetic().residual;
  if (kind == Residual::bf16_fused) kernels::round_to_bf16(residual, n);
  adds(residual);
  if (kind == Residual::bf16) kernels::round_to_bf16(residual, n);
}

/// y [n] += a * x [n]: fused, or where the arithmetic rounds, of the rounded product in `scratch` [n].
inline void add_scaled(const runtime::Workers& workers, float a, const float* x, std::int64_t n, float* scratch,
                       float* y) {
  if (!workers.arithmetic().rounds()) return kernels::kernels().axpy(a, x, n, y);
  kernels::kernels().scale(a, x, n, scratch);
  workers.round(scratch, n);
  kernels::kernels().add(scratch, n, y);
}

}  // namespace kalibri::model
