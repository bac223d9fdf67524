#include "engine/model/sparse_attention.hpp"

#include <algorithm>
#include <cmath>

#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/model/block_index.hpp"

namespace kalibri::model {

using checkpoint::Qwen4ExpConfig;
using kernels::kernels;

namespace {

constexpr float kIncomplete = -1.0F;  // in the tap index_scores: no such block for this query

float norm_eps(const Qwen4ExpConfig& c) {
  return static_cast<float>(KALIBRI_MUTATE(c.rms_norm_eps, "norm_eps_1e-5", 1e-5));
}

/// RMS1 of one head, then rotation of its first components.
void norm_and_rotate(const runtime::Workers& workers, float* x, const std::vector<float>& norm, float eps,
                     const float* cos, const float* sin, std::int64_t half) {
  const auto d = static_cast<std::int64_t>(norm.size());
  float* rotated = KALIBRI_MUTATE(x, "sparse_rope_last_dims", x + d - 2 * half);
  const bool rotates = KALIBRI_MUTATE(true, "sparse_no_rope", false);
  if (KALIBRI_MUTATE(false, "sparse_rope_before_norm", true)) kernels().rope(rotated, cos, sin, half);
  kernels().rms_norm(x, norm.data(), eps, d, x);
  workers.round(x, d);
  if (rotates && KALIBRI_MUTATE(true, "sparse_rope_before_norm", false)) {
    KALIBRI_MUTATE(kernels().rope, "sparse_rope_neighbours", rope_neighbours)(rotated, cos, sin, half);
  }
  workers.round(rotated, 2 * half);
}

}  // namespace

SparseAttentionState::SparseAttentionState(const Qwen4ExpConfig& c, std::int64_t max_tokens)
    : cache(max_tokens, max_tokens, c.num_key_value_heads * c.head_dim) {
  open_block.reserve(static_cast<std::size_t>(c.indexer_compress_ratio * c.indexer_head_dim));
  block_keys.reserve(static_cast<std::size_t>(max_tokens / c.indexer_compress_ratio * c.indexer_head_dim));
}

SparseAttention::SparseAttention(runtime::Workers& workers, const Qwen4ExpConfig& config, const RotaryTable& rotary,
                                 std::int64_t max_tokens)
    : workers_(workers),
      config_(config),
      rotary_(rotary),
      max_tokens_(max_tokens),
      scores_(static_cast<std::size_t>(workers.n_threads())) {}

void SparseAttention::project(const kernels::MatrixView& q, const kernels::MatrixView& k, const kernels::MatrixView& v,
                              const kernels::MatrixView& index, const float* u, std::int64_t n) {
  linear(workers_, q, u, n, q_and_gate_.floats(n * q.n_rows));
  linear(workers_, k, u, n, k_.floats(n * k.n_rows));
  linear(workers_, v, u, n, v_.floats(n * v.n_rows));
  linear(workers_, index, u, n, index_.floats(n * index.n_rows));
}

void SparseAttention::prepare_heads(const SparseAttentionWeights& weights, const TapWriter& taps) {
  const Qwen4ExpConfig& c = config_;
  const std::int64_t d = c.head_dim;
  const std::int64_t n_heads = c.num_attention_heads;
  const std::int64_t n_kv = c.num_key_value_heads;
  const std::int64_t di = c.indexer_head_dim;
  const float eps = norm_eps(c);
  const float* both = q_and_gate_.floats(0);
  float* q = q_.floats(taps.n_rows * n_heads * d);
  float* gate = gate_.floats(taps.n_rows * n_heads * d);
  workers_.rows(taps.n_rows, 1, [&](std::int64_t t) {
    const float* cos = rotary_.cosines(taps.first_pos + t);
    const float* sin = rotary_.sines(taps.first_pos + t);
    for (std::int64_t head = 0; head < n_heads; ++head) {  // per head: the query, then its gate
      const std::int64_t at = (t * n_heads + head) * d;
      const std::int64_t from = KALIBRI_MUTATE(2 * at, "sparse_gate_in_halves", 2 * t * n_heads * d + head * d);
      const std::int64_t gate_from = KALIBRI_MUTATE(from + d, "sparse_gate_in_halves", from + n_heads * d);
      std::copy_n(both + from, d, q + at);
      std::copy_n(both + gate_from, d, gate + at);
      norm_and_rotate(workers_, q + at, weights.q_norm, eps, cos, sin, rotary_.half());
    }
    for (std::int64_t head = 0; head < n_kv; ++head) {
      norm_and_rotate(workers_, k_.floats(0) + (t * n_kv + head) * d, weights.k_norm, eps, cos, sin, rotary_.half());
    }
    for (std::int64_t head = 0; head < c.indexer_n_heads; ++head) {
      float* x = index_.floats(0) + (t * (c.indexer_n_heads + 1) + head) * di;
      if (KALIBRI_MUTATE(true, "index_query_not_normed", false))
        kernels().rms_norm(x, weights.index_q_norm.data(), eps, di, x);
      workers_.round(x, di);
      if (KALIBRI_MUTATE(true, "index_query_not_rotated", false)) kernels().rope(x, cos, sin, rotary_.half());
      workers_.round(x, 2 * rotary_.half());
    }
  });
  (KALIBRI_MUTATE(kernels().sigmoid, "sparse_gate_silu", kernels().silu))(gate, taps.n_rows * n_heads * d, gate);
  workers_.round_rows(gate, taps.n_rows, n_heads * d);
  if (workers_.arithmetic().kv == runtime::Arithmetic::Kv::bf16) {
    kernels::round_to_bf16(k_.floats(0), taps.n_rows * n_kv * d);
    kernels::round_to_bf16(v_.floats(0), taps.n_rows * n_kv * d);
  }
}

void SparseAttention::close_blocks(const SparseAttentionWeights& weights, SparseAttentionState& state,
                                   const std::vector<AxisPositions>& positions, std::int64_t n) {
  const Qwen4ExpConfig& c = config_;
  const std::int64_t di = c.indexer_head_dim;
  const std::int64_t r = c.indexer_compress_ratio;
  const auto half = static_cast<std::size_t>(rotary_.half());
  std::vector<float> cos(half);
  std::vector<float> sin(half);
  for (std::int64_t t = 0; t < n; ++t) {
    float* raw = index_.floats(0) + (t * (c.indexer_n_heads + 1) + c.indexer_n_heads) * di;  // the key comes last
    if (KALIBRI_MUTATE(false, "index_keys_normed_before_pooling", true)) {
      kernels().rms_norm(raw, weights.index_k_norm.data(), norm_eps(c), di, raw);
    }
    state.open_block.insert(state.open_block.end(), raw, raw + di);
    if (static_cast<std::int64_t>(state.open_block.size()) < r * di) continue;
    // Complete: the mean of the raw keys, normed, rotated at the place of the block's first token, each a result.
    std::vector<float> key(static_cast<std::size_t>(di));
    for (std::int64_t i = 0; i < r; ++i) kernels().add(state.open_block.data() + i * di, di, key.data());
    kernels().scale(1.0F / static_cast<float>(r), key.data(), di, key.data());
    workers_.round(key.data(), di);
    if (KALIBRI_MUTATE(true, "index_keys_normed_before_pooling", false)) {
      kernels().rms_norm(key.data(), weights.index_k_norm.data(), norm_eps(c), di, key.data());
      workers_.round(key.data(), di);
    }
    const auto n_blocks = static_cast<std::int64_t>(state.block_keys.size()) / di;
    const std::int64_t place = KALIBRI_MUTATE(n_blocks * r, "index_block_rotated_at_last", n_blocks * r + r - 1);
    rotary_.row(positions[static_cast<std::size_t>(place)], cos.data(), sin.data());
    if (KALIBRI_MUTATE(true, "index_block_not_rotated", false))
      kernels().rope(key.data(), cos.data(), sin.data(), rotary_.half());
    workers_.round(key.data(), 2 * rotary_.half());
    state.block_keys.insert(state.block_keys.end(), key.begin(), key.end());
    state.open_block.clear();
  }
}

void SparseAttention::score_blocks(const SparseAttentionState& state, std::int64_t t, std::int64_t n_blocks,
                                   float* scores) {
  const std::int64_t di = config_.indexer_head_dim;
  const std::int64_t n_heads = config_.indexer_n_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(di));
  const float* queries = index_.floats(0) + t * (n_heads + 1) * di;
  for (std::int64_t block = 0; block < n_blocks; ++block) {
    float sum = 0.0F;
    for (std::int64_t head = 0; head < n_heads; ++head) {
      const float product = kernels().dot(queries + head * di, state.block_keys.data() + block * di, di);
      sum += KALIBRI_MUTATE(std::max(product, 0.0F), "index_relu_dropped", product);
    }
    scores[block] = sum * scale;
  }
}

void SparseAttention::attend(const SparseAttentionWeights& weights, SparseAttentionState& state,
                             const std::vector<AxisPositions>& positions, const TapWriter& taps,
                             const runtime::ForcedChoices* choices) {
  const Qwen4ExpConfig& c = config_;
  const std::int64_t n = taps.n_rows;
  const std::int64_t d = c.head_dim;
  const std::int64_t n_heads = c.num_attention_heads;
  const std::int64_t n_kv = c.num_key_value_heads;
  const std::int64_t r = c.indexer_compress_ratio;
  const std::int64_t n_columns = max_tokens_ / r;
  prepare_heads(weights, taps);
  taps.give("q", {n_heads * d}, q_.floats(0));
  taps.give("k", {n_kv * d}, k_.floats(0));
  taps.give("v", {n_kv * d}, v_.floats(0));
  state.cache.append(k_.floats(0), v_.floats(0), n, staging_);
  close_blocks(weights, state, positions, n);

  // Selection.
  workers_.enter(runtime::Phase::attention);
  float* scores = block_scores_.floats(n * n_columns);
  std::vector<std::vector<std::int32_t>> blocks(static_cast<std::size_t>(n));
  workers_.rows(n, 4, [&](std::int64_t t) {
    const std::int64_t pos = taps.first_pos + t;
    const std::int64_t n_complete = (pos + 1) / r;
    const std::span<float> row(scores + t * n_columns, static_cast<std::size_t>(n_columns));
    const bool has_choice = n_complete > c.blocks_kept();
    if (has_choice || taps.wants("index_scores")) score_blocks(state, t, n_complete, row.data());
    std::fill(row.begin() + n_complete, row.end(), kIncomplete);
    auto& chosen = blocks[static_cast<std::size_t>(t)];
    const auto forced = choices == nullptr ? runtime::ForcedChoices::Blocks{} : choices->blocks(taps.layer, pos);
    if (forced.given) {
      chosen.assign(forced.ids.begin(), forced.ids.end());
    } else {
      chosen = select_blocks(row, pos, r, c.blocks_kept());
    }
  });
  if (n_columns > 0) taps.give("index_scores", {n_columns}, scores);  // a dump has no empty tensors
  if (taps.wants("selected_blocks")) {
    std::vector<std::int32_t> padded(static_cast<std::size_t>(n * c.blocks_kept()), -1);
    for (std::int64_t t = 0; t < n; ++t) {
      const auto& chosen = blocks[static_cast<std::size_t>(t)];
      std::copy_n(chosen.begin(), std::min(static_cast<std::int64_t>(chosen.size()), c.blocks_kept()),
                  padded.begin() + t * c.blocks_kept());
    }
    taps.give("selected_blocks", {c.blocks_kept()}, padded.data());
  }

  // Attention over the selected runs of tokens, oldest first.
  float* context = context_.floats(n * n_heads * d);
  const std::int64_t together = KALIBRI_MUTATE(n_heads / n_kv, "sparse_kv_heads_tiled", 1);
  workers_.each(n, [&](std::int64_t t, int worker) {
    const std::int64_t pos = taps.first_pos + t;
    const std::vector<TokenRun> runs = attended_runs(blocks[static_cast<std::size_t>(t)], pos, r);
    std::int64_t n_keys = 0;
    for (const TokenRun& run : runs) n_keys += run.n;
    AlignedFloats& key_scores = scores_[static_cast<std::size_t>(worker)];
    key_scores.resize(std::max(key_scores.size(), static_cast<std::size_t>(together * n_keys)));
    std::vector<kernels::KeyRun> key_runs(runs.size());
    for (std::int64_t head = 0; head < n_heads; head += together) {
      const std::int64_t kv_head = KALIBRI_MUTATE(head / (n_heads / n_kv), "sparse_kv_heads_tiled", head % n_kv);
      for (std::size_t i = 0; i < runs.size(); ++i) {
        key_runs[i] = {state.cache.key_row(runs[i].first) + kv_head * d,
                       state.cache.value_row(runs[i].first) + kv_head * d, runs[i].n};
      }
      kernels::AttentionHeads call;
      call.n_heads = together;
      call.queries = q_.floats(0) + (t * n_heads + head) * d;
      call.runs = key_runs.data();
      call.n_runs = static_cast<std::int64_t>(key_runs.size());
      call.row_stride = n_kv * d;
      call.head_dim = d;
      call.scale = 1.0F / std::sqrt(static_cast<float>(d));
      call.scores = key_scores.data();
      call.out = context + (t * n_heads + head) * d;
      kernels().attention(call);
      workers_.round(call.out, together * d);
    }
  });
  taps.give("attention_context", {n_heads * d}, context);
  workers_.enter(runtime::Phase::mixer);
  workers_.rows(n, 4, [&](std::int64_t t) {
    if (KALIBRI_MUTATE(true, "sparse_gate_dropped", false)) {
      kernels().multiply(gate_.floats(0) + t * n_heads * d, n_heads * d, context + t * n_heads * d);
    }
    workers_.round(context + t * n_heads * d, n_heads * d);
  });
}

}  // namespace kalibri::model
