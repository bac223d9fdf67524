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
at::Tensor load_rows(const StoredMatrix& matrix, std::span<const std::int64_t> ids, at::ScalarType dtype);

/// Decodes rows [first_row, first_row + out.size(0)) to `out`, contiguous [n, n_cols]. Throws Error.
void load_to(const StoredMatrix& matrix, std::int64_t first_row, const at::Tensor& out);

/// x [T, n_in] times a weight [n_out, n_in], transposed: [T, n_out].
at::Tensor project(const at::Tensor& x, const at::Tensor& weight);

/// y_t = sum_j w[:, j] * x_(t - (K-1-j) * dilation) by channel, x before the first row being 0. x [T, n], w [n, K].
at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& w, std::int64_t dilation);

/// v_i / sqrt(mean_j v_j^2 + eps) over the last axis.
at::Tensor normalised(const at::Tensor& v, double eps);

/// normalised(v)_i * g_i. Source: Zhang and Sennrich, Root Mean Square Layer
/// Normalization (2019), equation 4.
at::Tensor rms_norm(const at::Tensor& v, const at::Tensor& g, double eps);

}  // namespace kalibri::reference
