// A mixture of experts: top-k selection, SwiGLU, and the routed sum in which each chosen expert is decoded once and
// applied to all rows that chose it. How scores become weights is the family's affair.
#pragma once

#include <span>

#include "reference/expert_weights.hpp"
#include "reference/rounding.hpp"

namespace kalibri::reference {

/// (silu(x G^T) * (x U^T)) D^T: [T, H] -> [T, H].
at::Tensor swiglu(const Rounding& r, const at::Tensor& x, const Expert& expert);

struct Selection {
  at::Tensor ids;  // [T, k] int64, by falling score; ties: lower id
  at::Tensor gap;  // [T]: k-th minus (k+1)-th score; undefined when k = E, where nothing is left out
};

/// The k largest of scores [T, E].
Selection select_top(const at::Tensor& scores, std::int64_t k);

/// Sum over the chosen experts of weight * expert(x), by ascending expert id. x [T, H], ids and weights [T, k] -> [T,
/// H].
at::Tensor routed_sum(const Rounding& r, const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights,
                      std::span<const Expert> experts);

}  // namespace kalibri::reference
