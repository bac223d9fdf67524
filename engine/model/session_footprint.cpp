#include "engine/model/session_footprint.hpp"

#include <algorithm>

#include "engine/model/kolibri1.hpp"

namespace kalibri::model {

namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kInt32 = 4;
constexpr std::int64_t kInt64 = 8;
constexpr std::int64_t kAxes = 3 * kInt64;  // a token's place

/// Keys and values of so many positions.
std::int64_t kv_bytes(std::int64_t n_positions, std::int64_t row_size) { return 2 * n_positions * row_size * kFloat; }

/// Of one layer's experts in a chunk of n tokens: ExpertBuffers and what routed_experts sorts; each thread gathers the
/// tokens of one expert, at most all of them.
std::int64_t expert_bytes(std::int64_t n, std::int64_t hidden, std::int64_t n_experts, std::int64_t top_k,
                          std::int64_t width, std::int64_t shared_width, int n_threads) {
  const std::int64_t routing = n * n_experts * kFloat + n * top_k * (kFloat + kInt32 + kInt64 + 2 * kInt64);
  const std::int64_t slots = n * top_k * hidden * kFloat;
  const std::int64_t shared = (2 * shared_width + hidden) * n * kFloat;
  const std::int64_t gathered = n_threads * n * (hidden + 2 * width) * kFloat;
  return routing + slots + shared + gathered;
}

/// A generator's: the logits, what the sampler sorts, and the last row of the final norm.
std::int64_t speaking_bytes(std::int64_t vocab_size, std::int64_t hidden) {
  constexpr std::int64_t kCandidate = 24;
  return vocab_size * (kFloat + kCandidate) + hidden * kFloat;
}

/// Cosines and sines of a chunk, and the places that they are for.
std::int64_t rotary_bytes(std::int64_t n, std::int64_t rotary_dim) { return n * (rotary_dim * kFloat + 2 * kAxes); }

}  // namespace

SessionFootprint session_footprint(const checkpoint::Kolibri1Config& c, const SessionSizes& sizes) {
  const std::int64_t n = sizes.chunk;
  const std::int64_t h = c.hidden_size;
  const std::int64_t queries = c.num_attention_heads * c.head_dim;
  const std::int64_t keys = c.num_key_value_heads * c.head_dim;
  SessionFootprint sum;
  bool wraps = false;
  for (const bool is_sliding : c.layer_is_sliding) {
    const std::int64_t n_positions = is_sliding ? std::min(c.sliding_window, sizes.context) : sizes.context;
    sum.state_bytes += kv_bytes(n_positions, keys);
    if (n_positions == sizes.context) {
      sum.token_bytes += kv_bytes(1, keys);
    } else {
      wraps = true;
    }
  }
  sum.touched_bytes = sum.state_bytes;
  const std::int64_t residual = n * h;
  const std::int64_t normed_branch_shared = 2 * n * h;  // `shared` is counted with the experts
  const std::int64_t q_context = 2 * n * queries;
  const std::int64_t k_v = 2 * n * keys;
  const std::int64_t scores = sizes.n_threads * heads_together(c) * sizes.context;
  const std::int64_t floats = residual + normed_branch_shared + q_context + k_v + scores;
  const std::int64_t staging = wraps ? kv_bytes(c.sliding_window - 1 + n, keys) : 0;
  sum.buffer_bytes = floats * kFloat + staging + rotary_bytes(n, c.head_dim) +
                     expert_bytes(n, h, c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size,
                                  c.shared_expert_intermediate_size, sizes.n_threads) +
                     speaking_bytes(c.vocab_size, h);
  return sum;
}

SessionFootprint session_footprint(const checkpoint::Qwen4ExpConfig& c, const SessionSizes& sizes) {
  const std::int64_t n = sizes.chunk;
  const std::int64_t h = c.hidden_size;
  const std::int64_t width = c.residual_size();
  const std::int64_t channels = 2 * c.delta_key_size() + c.delta_value_size();
  const std::int64_t n_sparse = std::count(c.layer_is_sparse.begin(), c.layer_is_sparse.end(), true);
  const std::int64_t n_delta = c.num_hidden_layers - n_sparse;
  const auto n_ngram = static_cast<std::int64_t>(c.ple_layers.size());
  const std::int64_t keys = c.num_key_value_heads * c.head_dim;
  const std::int64_t n_ngram_kept = (c.ple_conv_kernel_size - 1) * c.ngram_size;  // RowHistory's rows
  const std::int64_t n_conv_kept = c.linear_conv_kernel_dim - 1;

  SessionFootprint sum;
  const std::int64_t memory = c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim;
  const std::int64_t open_block = c.indexer_compress_ratio * c.indexer_head_dim;
  sum.token_bytes = n_sparse * (kv_bytes(1, keys) + c.indexer_head_dim * kFloat / c.indexer_compress_ratio) + kAxes;
  sum.state_bytes = sum.token_bytes * sizes.context + kFloat * (n_delta * (memory + n_conv_kept * channels) +
                                                                n_sparse * open_block + n_ngram * n_ngram_kept * width);

  const std::int64_t attended = std::min(sizes.context, c.indexer_budget + c.indexer_compress_ratio);
  sum.touched_bytes =
      n_sparse * (kv_bytes(attended, keys) + sizes.context / c.indexer_compress_ratio * c.indexer_head_dim * kFloat) +
      2 * n_delta * memory * kFloat;

  const std::int64_t streams = n * (width + 2 * h + c.hc_count + 1);  // residual; mixed, block, inject, shared gate
  const std::int64_t connection = n * (2 * width + c.hc_lowrank) + sizes.n_threads * h;
  const std::int64_t ngram =
      n_ngram == 0 ? 0 : n * (c.ple_embed_dim + h + 3 * width + 2 * c.ngram_heads()) + (n_ngram_kept + n) * width;
  const std::int64_t delta = n_delta == 0 ? 0
                                          : (n_conv_kept + 2 * n) * channels + n * channels +
                                                n * (2 * c.delta_value_size() + 2 * c.linear_num_value_heads);
  const std::int64_t queries = c.num_attention_heads * c.head_dim;
  const std::int64_t index_width = (c.indexer_n_heads + 1) * c.indexer_head_dim;
  const std::int64_t n_blocks = sizes.context / c.indexer_compress_ratio;
  const std::int64_t sparse =
      n_sparse == 0 ? 0
                    : n * (5 * queries + 2 * keys + index_width + n_blocks + std::min(n_blocks, c.blocks_kept())) +
                          sizes.n_threads * c.num_attention_heads / c.num_key_value_heads * attended;
  sum.buffer_bytes = (streams + connection + ngram + delta + sparse) * kFloat + rotary_bytes(n, c.rotary_dim) +
                     expert_bytes(n, h, c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size,
                                  c.shared_expert_intermediate_size, sizes.n_threads) +
                     speaking_bytes(c.vocab_size, h);
  return sum;
}

}  // namespace kalibri::model
