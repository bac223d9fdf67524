#include "engine/model/qwen4_exp.hpp"

#include <algorithm>
#include <utility>

#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/model/residual.hpp"
#include "engine/model/router.hpp"

namespace kalibri::model {

using checkpoint::Qwen4ExpConfig;
using kernels::kernels;
using runtime::kNoLayer;
using runtime::Phase;

namespace {

/// The axis that turns each frequency: interleaved, h at 1, 4, ..., w at 2, 5, ..., t elsewhere. Source: transformers,
/// modeling_qwen4_exp.py, interleaved mRoPE.
std::vector<std::size_t> axes(const Qwen4ExpConfig& c) {
  std::vector<std::size_t> axis(static_cast<std::size_t>(c.rotary_dim / 2));
  for (std::size_t j = 0; j < axis.size(); ++j) {
    const std::size_t candidate = j % 3;
    if (candidate != 0 && static_cast<std::int64_t>(j) < 3 * c.mrope_section[candidate]) axis[j] = candidate;
  }
  return axis;
}

[[maybe_unused]] void mean_of_streams(const float* residual, std::int64_t n, const Qwen4ExpConfig& c, float* mean) {
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t i = 0; i < c.hidden_size; ++i) {
      float sum = 0;
      for (std::int64_t s = 0; s < c.hc_count; ++s) sum += residual[t * c.residual_size() + s * c.hidden_size + i];
      mean[t * c.hidden_size + i] = sum / static_cast<float>(c.hc_count);
    }
  }
}

}  // namespace

Qwen4ExpSequence::Qwen4ExpSequence(const Qwen4ExpWeights& weights, runtime::Workers& workers, std::int64_t max_tokens)
    : weights_(weights),
      workers_(workers),
      rotary_(weights.config.rotary_dim, weights.config.rope_theta, axes(weights.config),
              workers.arithmetic().rounds()),
      connection_(workers, weights.config),
      ngram_(workers, weights.config),
      delta_net_(workers, weights.config),
      sparse_attention_(workers, weights.config, rotary_, max_tokens) {
  for (const Qwen4ExpLayer& layer : weights.layers) {
    LayerState state;
    if (layer.ngram != nullptr) state.ngram.emplace(weights.config);
    if (layer.delta_net.has_value()) state.delta_net.emplace(weights.config);
    if (layer.sparse_attention.has_value()) state.sparse_attention.emplace(weights.config, max_tokens);
    state_.push_back(std::move(state));
  }
}

void Qwen4ExpSequence::embed(std::span<const std::int32_t> ids, float* residual) const {
  const std::int64_t h = weights_.config.hidden_size;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    float* row = residual + static_cast<std::int64_t>(t) * weights_.config.residual_size();
    weights_.decode_embedding(ids[t], row);
    workers_.round(row, h);
    for (std::int64_t s = 1; s < weights_.config.hc_count; ++s) std::copy_n(row, h, row + s * h);
  }
}

void Qwen4ExpSequence::set_positions(std::vector<AxisPositions> positions, std::int64_t delta) {
  positions_ = std::move(positions);
  position_delta_ = delta;
}

void Qwen4ExpSequence::extend_positions(std::int64_t n_tokens) {
  while (static_cast<std::int64_t>(positions_.size()) < n_tokens) {
    const std::int64_t pos = static_cast<std::int64_t>(positions_.size()) + position_delta_;
    positions_.push_back({pos, pos, pos});
  }
}

void Qwen4ExpSequence::mix_experts(const Qwen4ExpLayer& layer, std::int64_t index, const float* u, float* out,
                                   const TapWriter& taps) {
  const Qwen4ExpConfig& c = weights_.config;
  const std::int64_t n = taps.n_rows;
  const std::int64_t h = c.hidden_size;
  const std::int64_t k = c.num_experts_per_tok;
  float* router_logits = router_logits_.floats(n * c.num_experts);
  float* expert_weights = weights_of_experts_.floats(n * k);
  float* shared = shared_.floats(n * h);
  float* shared_gate = shared_gate_.floats(n);
  expert_ids_.resize(static_cast<std::size_t>(n * k));
  std::vector<float> gaps(static_cast<std::size_t>(n));

  workers_.enter(Phase::router);
  linear(workers_, weights_.form(index, layer.router), u, n, router_logits, runtime::Output::exact);
  workers_.rows(n, 8, [&](std::int64_t t) {
    const std::span<const float> logits{router_logits + t * c.num_experts, static_cast<std::size_t>(c.num_experts)};
    const std::span<const std::int32_t> forced =
        choices_ == nullptr ? std::span<const std::int32_t>{} : choices_->experts(index, taps.first_pos + t);
    std::int32_t* ids = expert_ids_.data() + t * k;
    gaps[static_cast<std::size_t>(t)] = select_top_k(logits, k, ids);
    if (!forced.empty()) std::copy_n(forced.begin(), k, ids);
    softmax_weights(logits, {ids, static_cast<std::size_t>(k)}, c.norm_topk_prob, expert_weights + t * k);
    if (workers_.arithmetic().rounds_all()) kernels::round_to_bf16(expert_weights + t * k, k);
  });
  taps.give("router_logits", {c.num_experts}, router_logits);
  taps.give("router_gap", {}, gaps.data());
  taps.give("expert_ids", {k}, expert_ids_.data());
  taps.give("expert_weights", {k}, expert_weights);

  workers_.enter(Phase::experts);
  RoutedExperts routed_experts(weights_.experts(), index, n, k, expert_ids_.data());
  workers_.enter(Phase::shared_expert);
  const runtime::ExpertWeights shared_expert = {weights_.form(index, layer.shared_expert.gate),
                                                weights_.form(index, layer.shared_expert.up),
                                                weights_.form(index, layer.shared_expert.down)};
  swiglu(workers_, shared_expert, u, n, shared, expert_buffers_);  // while routed ones are read
  linear(workers_, weights_.form(index, layer.shared_expert_gate), u, n, shared_gate);
  kernels().sigmoid(shared_gate, n, shared_gate);
  workers_.round(shared_gate, n);
  workers_.enter(Phase::experts);
  routed_experts.run(workers_, u, h, expert_weights, out, expert_buffers_);
  taps.give("routed_out", {h}, out);
  if (taps.wants("shared_out")) {  // gated, as it is added; the sum itself rounds once
    std::vector<float> gated(shared, shared + n * h);
    for (std::int64_t t = 0; t < n; ++t) kernels().scale(shared_gate[t], gated.data() + t * h, h, gated.data() + t * h);
    workers_.round_rows(gated.data(), n, h);
    taps.give("shared_out", {h}, gated.data());
  }
  workers_.rows(n, 8, [&](std::int64_t t) {
    const float gate =
        KALIBRI_MUTATE(KALIBRI_MUTATE(shared_gate[t], "shared_gate_dropped", 1.0F), "shared_expert_dropped", 0.0F);
    add_scaled(workers_, gate, shared + t * h, h, shared + t * h, out + t * h);
    workers_.round(out + t * h, h);
  });
  taps.give("moe_out", {h}, out);
  workers_.enter(Phase::mixer);
}

void Qwen4ExpSequence::run_layer(std::int64_t index, std::span<const std::int32_t> ids, float* residual,
                                 runtime::TapSink* sink) {
  const Qwen4ExpConfig& c = weights_.config;
  const Qwen4ExpLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
  LayerState& state = state_[static_cast<std::size_t>(index)];
  const auto n = static_cast<std::int64_t>(ids.size());
  const TapWriter taps{sink, static_cast<int>(index), state.position, n};
  const auto form = [&](const kernels::MatrixView& stored) { return weights_.form(index, stored); };
  workers_.enter(Phase::mixer);
  float* mixed = mixed_.floats(n * c.hidden_size);
  float* inject = inject_.floats(n * c.hc_count);
  float* block = block_.floats(n * c.hidden_size);

  if (layer.ngram != nullptr && KALIBRI_MUTATE(true, "ngram_after_mixer", false)) {
    ngram_.run(*layer.ngram, form, *state.ngram, ids, residual, taps);
  }
  connection_.read_out(layer.attention_connection, form, residual, n, mixed, inject);
  taps.give("attn_mixed", {c.hidden_size}, mixed);
  taps.give("attn_inject", {c.hc_count}, inject);
  if (layer.delta_net.has_value()) {
    delta_net_.run(*layer.delta_net, form, *state.delta_net, mixed, block, taps);
  } else {
    extend_positions(state.position + n);
    const auto first = positions_.begin() + state.position;
    rotary_.prepare(state.position, {first, first + n});
    sparse_attention_.run(*layer.sparse_attention, form, *state.sparse_attention, positions_, mixed, block, taps,
                          choices_);
  }
  taps.give("mixer_out", {c.hidden_size}, block);
  connection_.add(residual, block, inject, n);
  if (layer.ngram != nullptr && KALIBRI_MUTATE(false, "ngram_after_mixer", true)) {
    ngram_.run(*layer.ngram, form, *state.ngram, ids, residual, taps);
  }

  connection_.read_out(layer.mlp_connection, form, residual, n, mixed, inject);
  taps.give("mlp_mixed", {c.hidden_size}, mixed);
  taps.give("mlp_inject", {c.hc_count}, inject);
  mix_experts(layer, index, mixed, block, taps);
  connection_.add(residual, block, inject, n);
  taps.give("residual", {c.residual_size()}, residual);
  state.position += n;
  workers_.enter(Phase::other);
}

void Qwen4ExpSequence::head(const float* residual, std::int64_t n, float* final_norm, float* logits) {
  const auto form = [&](const kernels::MatrixView& stored) { return weights_.form(kNoLayer, stored); };
  connection_.read_out(weights_.final_mixer, form, residual, n, final_norm, nullptr);
  if (KALIBRI_MUTATE(false, "final_mixer_mean", true)) mean_of_streams(residual, n, weights_.config, final_norm);
  if (logits == nullptr) return;
  workers_.enter(Phase::head);
  const auto output = workers_.arithmetic().rounds_all() ? runtime::Output::rounded : runtime::Output::exact;
  linear(workers_, form(weights_.lm_head), final_norm, n, logits, output);
  workers_.enter(Phase::other);
}

}  // namespace kalibri::model
