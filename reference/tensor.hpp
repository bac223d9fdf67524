// The one way to LibTorch, and from stored weights to its tensors. Every tensor of a run is f32, or every one is f64.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

#include "reference/stored_matrix.hpp"

namespace kalibri::reference {

/// All of `matrix`, decoded: [n_rows, n_cols] of `dtype` (kFloat or kDouble). Its pages are let go. Throws Error.
at::Tensor load(const StoredMatrix& matrix, at::ScalarType dtype);

/// The rows `ids` of `matrix`, decoded: [ids.size(), n_cols]. Its pages are let go. Throws Error.
at::Tensor load_rows(const StoredMatrix& matrix, std::span<const std::int32_t> ids, at::ScalarType dtype);

/// x [T, n_in] times a weight [n_out, n_in], transposed: [T, n_out].
at::Tensor project(const at::Tensor& x, const at::Tensor& weight);

/// v_i / sqrt(mean_j v_j^2 + eps) * g_i over the last axis. Source: spec/kolibri1.md section 3.
at::Tensor rms_norm(const at::Tensor& v, const at::Tensor& g, double eps);

}  // namespace kalibri::reference
