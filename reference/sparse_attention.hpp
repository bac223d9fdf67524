// Qwen Sparse Attention: each query attends to the blocks of keys that an indexer scores highest, and to the incomplete
// block at the end. Source: transformers, modeling_qwen4_exp.py, sparse attention.
#pragma once

#include "reference/model.hpp"
#include "reference/qwen4_exp_tensors.hpp"
#include "reference/tensor.hpp"

namespace kalibri::reference {

struct SparseAttention {
  StoredMatrix q_proj;                      // [heads * 2 * D, H]: for each head the query, then its output gate
  StoredMatrix k_proj, v_proj;              // [kv_heads * D, H]
  StoredMatrix o_proj;                      // [H, heads * D]
  StoredMatrix q_norm, k_norm;              // [D]
  StoredMatrix index_qk_proj;               // [(index heads + 1) * index dim, H]: the queries, then the one key
  StoredMatrix index_q_norm, index_k_norm;  // [index dim]
  std::int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::int64_t n_index_heads = 0, index_dim = 0;
  std::int64_t block_size = 0;  // r tokens
  std::int64_t n_kept = 0;      // blocks a query attends to at most, besides the incomplete one
  std::int64_t rotary_dim = 0;
  double rope_theta = 0;
  double eps = 0;
};

SparseAttention find_sparse_attention(const Qwen4ExpTensors& tensors);

/// u [N, H] -> [N, H], one prompt after the other; records q, k, v, index_scores, selected_blocks and
/// attention_context, the heads' outputs before their gate.
at::Tensor run_sparse_attention(const Rounding& r, const SparseAttention& attention, const at::Tensor& u,
                                std::span<const Prompt> prompts, const Record& record);

}  // namespace kalibri::reference
