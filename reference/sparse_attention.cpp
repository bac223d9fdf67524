#include "reference/sparse_attention.hpp"

#include <algorithm>
#include <cmath>

#include "reference/attention.hpp"
#include "reference/experts.hpp"
#include "reference/gated_residual.hpp"

namespace kalibri::reference {
namespace {

constexpr std::int64_t kQueryBlock = 128;  // queries whose scores are in memory at once

/// One prompt's tensors.
struct Heads {
  at::Tensor q, gate;  // [T, heads, D]
  at::Tensor k, v;     // [T, kv_heads, D]
  at::Tensor index_q;  // [T, index heads, index dim]
  at::Tensor index_k;  // [blocks, index dim], of the complete blocks
};

/// Queries, gates, keys and values, the indexer's queries, and its keys of complete blocks: means of raw keys, normed
/// and rotated at the first token.
Heads project_heads(const Rounding& r, const SparseAttention& s, const at::Tensor& u) {
  const std::int64_t n_tokens = u.size(0);
  const Rotation exact = rotation(n_tokens, s.rotary_dim, s.rope_theta, r.dtype());
  const Rotation turn{r(exact.cos), r(exact.sin)};
  const at::Tensor q_and_gate = r(r.linear(s.q_proj)(u)).view({n_tokens, s.n_heads, 2 * s.head_dim});
  const at::Tensor q = q_and_gate.narrow(2, 0, s.head_dim);
  const at::Tensor k = r(r.linear(s.k_proj)(u)).view({n_tokens, s.n_kv_heads, s.head_dim});
  Heads heads;
  heads.q = r(rotate_first(norm_plus_one(r, q, s.q_norm, s.eps), turn));
  heads.gate = q_and_gate.narrow(2, s.head_dim, s.head_dim);
  heads.k = r.kv(r(rotate_first(norm_plus_one(r, k, s.k_norm, s.eps), turn)));
  heads.v = r.kv(r(r.linear(s.v_proj)(u))).view({n_tokens, s.n_kv_heads, s.head_dim});

  const at::Tensor index = r(r.linear(s.index_qk_proj)(u)).view({n_tokens, s.n_index_heads + 1, s.index_dim});
  heads.index_q = r(rotate_first(norm_plus_one(r, index.narrow(1, 0, s.n_index_heads), s.index_q_norm, s.eps), turn));
  const std::int64_t n_blocks = n_tokens / s.block_size;
  const std::int64_t n_whole = n_blocks * s.block_size;
  const at::Tensor mean =
      r(index.select(1, s.n_index_heads).narrow(0, 0, n_whole).reshape({n_blocks, s.block_size, s.index_dim}).mean(1));
  const auto at_first_tokens = [&](const at::Tensor& angles) { return angles.slice(0, 0, n_whole, s.block_size); };
  heads.index_k = r(rotate_first(norm_plus_one(r, mean.unsqueeze(1), s.index_k_norm, s.eps),
                                 {at_first_tokens(turn.cos), at_first_tokens(turn.sin)}))
                      .squeeze(1);
  return heads;
}

/// Scores of queries [begin, end) [end - begin, blocks], -1 where the block is not complete for the query.
at::Tensor score_blocks(const SparseAttention& s, const Heads& heads, std::int64_t begin, std::int64_t end) {
  const at::Tensor q = heads.index_q.slice(0, begin, end).reshape({-1, s.index_dim});
  const at::Tensor products = project(q, heads.index_k).view({end - begin, s.n_index_heads, -1});
  const at::Tensor scores = at::relu(products).sum(1) / std::sqrt(static_cast<double>(s.index_dim));
  const at::Tensor n_complete = at::div(at::arange(begin + 1, end + 1, at::kLong), s.block_size, "floor").unsqueeze(1);
  return scores.masked_fill(at::arange(heads.index_k.size(0), at::kLong) >= n_complete, -1.0);
}

/// The kept of the first n_complete blocks, ascending; ties: lower block.
at::Tensor select_blocks(const SparseAttention& s, const at::Tensor& scores, std::int64_t n_complete) {
  const std::int64_t n_kept = std::min(s.n_kept, n_complete);
  return std::get<0>(select_top(scores.narrow(0, 0, n_complete), n_kept).ids.sort());
}

/// The tokens of `blocks` and those from the last complete block to `query`, ascending.
at::Tensor attended_tokens(const SparseAttention& s, const at::Tensor& blocks, std::int64_t query) {
  const std::int64_t first_of_tail = (query + 1) / s.block_size * s.block_size;
  const at::Tensor in_blocks = blocks.unsqueeze(1) * s.block_size + at::arange(s.block_size, at::kLong);
  return at::cat({in_blocks.flatten(), at::arange(first_of_tail, query + 1, at::kLong)});
}

/// softmax(q k / sqrt(D)) v of one query over `tokens` -> [heads, D]; head h reads KV head floor(h * kv_heads
/// / heads).
at::Tensor attend(const SparseAttention& s, const Heads& heads, std::int64_t query, const at::Tensor& tokens) {
  const at::Tensor q = heads.q[query].view({s.n_kv_heads, s.n_heads / s.n_kv_heads, s.head_dim});
  const at::Tensor k = heads.k.index_select(0, tokens).permute({1, 2, 0});
  const at::Tensor v = heads.v.index_select(0, tokens).permute({1, 0, 2});
  const at::Tensor p = at::softmax(at::bmm(q, k) / std::sqrt(static_cast<double>(s.head_dim)), -1);
  return at::bmm(p, v).view({s.n_heads, s.head_dim});
}

/// All queries of one prompt -> the heads' outputs [T, heads, D].
at::Tensor attend_all(const SparseAttention& s, const Heads& heads, std::int64_t first_row, const Record& record) {
  const std::int64_t n_tokens = heads.q.size(0);
  at::Tensor context = at::empty_like(heads.q);
  at::Tensor selected = at::full({n_tokens, s.n_kept}, -1, at::kInt);
  for (std::int64_t begin = 0; begin < n_tokens; begin += kQueryBlock) {
    const std::int64_t end = std::min(begin + kQueryBlock, n_tokens);
    const at::Tensor scores = score_blocks(s, heads, begin, end);
    for (std::int64_t query = begin; query < end; ++query) {
      const at::Tensor blocks = select_blocks(s, scores[query - begin], (query + 1) / s.block_size);
      selected[query].narrow(0, 0, blocks.size(0)).copy_(blocks);
      context[query].copy_(attend(s, heads, query, attended_tokens(s, blocks, query)));
    }
    if (scores.size(1) > 0) record("index_scores", first_row + begin, scores);  // a dump holds no empty tensor
  }
  record("selected_blocks", first_row, selected);
  return context;
}

}  // namespace

SparseAttention find_sparse_attention(const Qwen4ExpTensors& tensors) {
  const Qwen4ExpConfig& c = tensors.config;
  const std::int64_t width = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_width = c.num_key_value_heads * c.head_dim;
  SparseAttention s;
  s.q_proj = tensors.matrix("q_proj.weight", 2 * width, c.hidden_size);
  s.k_proj = tensors.matrix("k_proj.weight", kv_width, c.hidden_size);
  s.v_proj = tensors.matrix("v_proj.weight", kv_width, c.hidden_size);
  s.o_proj = tensors.matrix("o_proj.weight", c.hidden_size, width);
  s.q_norm = tensors.vector("q_norm.weight", c.head_dim);
  s.k_norm = tensors.vector("k_norm.weight", c.head_dim);
  s.index_qk_proj =
      tensors.matrix("indexer.index_qk_proj.weight", (c.indexer_n_heads + 1) * c.indexer_head_dim, c.hidden_size);
  s.index_q_norm = tensors.vector("indexer.q_layernorm.weight", c.indexer_head_dim);
  s.index_k_norm = tensors.vector("indexer.k_layernorm.weight", c.indexer_head_dim);
  s.n_heads = c.num_attention_heads;
  s.n_kv_heads = c.num_key_value_heads;
  s.head_dim = c.head_dim;
  s.n_index_heads = c.indexer_n_heads;
  s.index_dim = c.indexer_head_dim;
  s.block_size = c.indexer_compress_ratio;
  s.n_kept = c.indexer_budget / c.indexer_compress_ratio;
  s.rotary_dim = c.rotary_dim;
  s.rope_theta = c.rope_theta;
  s.eps = c.rms_norm_eps;
  return s;
}

at::Tensor run_sparse_attention(const Rounding& r, const SparseAttention& s, const at::Tensor& u,
                                std::span<const Prompt> prompts, const Record& record) {
  const Linear o_proj = r.linear(s.o_proj);
  at::Tensor out = at::empty_like(u);
  for (const Prompt& prompt : prompts) {
    const Heads heads = project_heads(r, s, u.slice(0, prompt.first_row, prompt.end_row()));
    const at::Tensor context = r(attend_all(s, heads, prompt.first_row, record));
    out.slice(0, prompt.first_row, prompt.end_row())
        .copy_(r(o_proj(r(context * r(at::sigmoid(heads.gate))).flatten(1))));
    record("q", prompt.first_row, heads.q.flatten(1));
    record("k", prompt.first_row, heads.k.flatten(1));
    record("v", prompt.first_row, heads.v.flatten(1));
    record("attention_context", prompt.first_row, context.flatten(1));
  }
  return out;
}

}  // namespace kalibri::reference
