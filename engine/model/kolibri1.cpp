#include "engine/model/kolibri1.hpp"

#include <algorithm>
#include <cmath>

#include "engine/base/check.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"
#include "engine/model/residual.hpp"
#include "engine/model/router.hpp"

namespace kalibri::model {

namespace {

using kernels::kernels;
using runtime::kNoLayer;
using runtime::Phase;

/// How many of the newest positions a query of this layer sees, its own included. Source: aleph-alpha-inference
/// 1.0.0, kolibri1.py.
std::int64_t window_of(const Kolibri1Layer& layer, const checkpoint::Kolibri1Config& config, std::int64_t max_tokens) {
  const std::int64_t w = config.sliding_window;
  const std::int64_t everything = std::max(w, max_tokens);
  if (!layer.is_sliding) return KALIBRI_MUTATE(everything, "window_on_full_layers", w);
  return KALIBRI_MUTATE(KALIBRI_MUTATE(KALIBRI_MUTATE(w, "window_minus_1", w - 1), "window_plus_1", w + 1), "no_window",
                        everything);
}

/// Full layers have no position embedding.
bool rotates(const Kolibri1Layer& layer) {
  return KALIBRI_MUTATE(KALIBRI_MUTATE(layer.is_sliding, "rope_on_full_layers", true), "no_rope_at_all", false);
}

}  // namespace

Kolibri1Sequence::Kolibri1Sequence(const Kolibri1Weights& weights, runtime::Workers& workers, std::int64_t max_tokens)
    : weights_(weights),
      workers_(workers),
      eps_(static_cast<float>(
          KALIBRI_MUTATE(KALIBRI_MUTATE(weights.config.rms_norm_eps, "eps_1e-5", 1e-5), "eps_zero", 0.0))),
      rotary_(weights.config.head_dim, KALIBRI_MUTATE(weights.config.rope_theta, "rope_theta_1e6", 1e6)),
      scores_(static_cast<std::size_t>(workers.n_threads())) {
  const std::int64_t row_size = weights.config.num_key_value_heads * weights.config.head_dim;
  for (const Kolibri1Layer& layer : weights.layers) {
    caches_.emplace_back(window_of(layer, weights.config, max_tokens), max_tokens, row_size);
  }
}

void Kolibri1Sequence::embed(std::span<const std::int32_t> ids, float* residual) const {
  const std::int64_t h = weights_.config.hidden_size;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    float* row = residual + static_cast<std::int64_t>(t) * h;
    weights_.decode_embedding(ids[t], row);
    for (std::int64_t i = 0; i < h; ++i) {
      row[i] = KALIBRI_MUTATE(row[i], "embed_scale_sqrt_h", row[i] * std::sqrt(static_cast<float>(h)));
    }
    workers_.round(row, h);
  }
}

void Kolibri1Sequence::rms_norm_rows(const float* x, const std::vector<float>& weight, std::int64_t n, float* y) const {
  const auto width = static_cast<std::int64_t>(weight.size());
  workers_.rows(n, 16, [&](std::int64_t t) {
    kernels().rms_norm(x + t * width, weight.data(), eps_, width, y + t * width);
    workers_.round(y + t * width, width);
  });
}

void Kolibri1Sequence::norm_and_rotate(float* heads, std::int64_t n_heads, const std::vector<float>& weight,
                                       bool rotates, std::int64_t first_pos, std::int64_t n) const {
  const std::int64_t d = weights_.config.head_dim;
  const std::int64_t group = KALIBRI_MUTATE(d, "qk_norm_flat", n_heads * d);  // components that share a mean square
  workers_.rows(n, 4, [&](std::int64_t t) {
    float* row = heads + t * n_heads * d;
    const auto rotate = [&] {
      for (std::int64_t h = 0; rotates && h < n_heads; ++h) {
        KALIBRI_MUTATE(kernels().rope, "rope_interleaved", rope_neighbours)
        (row + h * d, rotary_.cosines(first_pos + t), rotary_.sines(first_pos + t), rotary_.half());
      }
    };
    if (KALIBRI_MUTATE(false, "rope_before_qk_norm", true)) rotate();
    for (std::int64_t i = 0; KALIBRI_MUTATE(true, "no_qk_norm", false) && i < n_heads * d; i += group) {
      kernels().rms_norm(row + i, weight.data() + i, eps_, group, row + i);
    }
    workers_.round(row, n_heads * d);
    if (KALIBRI_MUTATE(true, "rope_before_qk_norm", false)) rotate();
    workers_.round(row, n_heads * d);
  });
}

void Kolibri1Sequence::add_branch(float* residual, const float* branch, const std::vector<float>& norm,
                                  bool norms_branch, std::int64_t n) const {
  const auto h = static_cast<std::int64_t>(norm.size());
  workers_.rows(n, 16, [&](std::int64_t t) {
    float* row = residual + t * h;
    std::vector<float> normed(branch + t * h, branch + (t + 1) * h);
    if (norms_branch) kernels().rms_norm(normed.data(), norm.data(), eps_, h, normed.data());
    workers_.round(normed.data(), h);
    add_to_residual(workers_, h, row, [&](float* sum) { kernels().add(normed.data(), h, sum); });
  });
}

void Kolibri1Sequence::attention(const Kolibri1Layer& layer, std::int64_t index, float* residual,
                                 const TapWriter& taps) {
  const checkpoint::Kolibri1Config& c = weights_.config;
  const std::int64_t n = taps.n_rows;
  const std::int64_t d = c.head_dim;
  const std::int64_t n_heads = c.num_attention_heads;
  const std::int64_t n_kv = c.num_key_value_heads;
  float* normed = normed_.floats(n * c.hidden_size);
  float* q = q_.floats(n * n_heads * d);
  float* k = k_.floats(n * n_kv * d);
  float* v = v_.floats(n * n_kv * d);
  float* context = context_.floats(n * n_heads * d);
  float* branch = branch_.floats(n * c.hidden_size);

  workers_.enter(Phase::mixer);
  rms_norm_rows(residual, layer.input_layernorm, n, normed);
  linear(workers_, weights_.form(index, layer.q_proj), normed, n, q);
  linear(workers_, weights_.form(index, layer.k_proj), normed, n, k);
  linear(workers_, weights_.form(index, layer.v_proj), normed, n, v);
  if (rotates(layer)) rotary_.prepare(taps.first_pos, n);
  norm_and_rotate(q, n_heads, layer.q_norm, rotates(layer), taps.first_pos, n);
  norm_and_rotate(k, n_kv, layer.k_norm, rotates(layer), taps.first_pos, n);
  if (workers_.arithmetic().kv == runtime::Arithmetic::Kv::bf16) {
    kernels::round_to_bf16(k, n * n_kv * d);
    kernels::round_to_bf16(v, n * n_kv * d);
  }
  taps.give("q", {n_heads * d}, q);
  taps.give("k", {n_kv * d}, k);
  taps.give("v", {n_kv * d}, v);

  workers_.enter(Phase::attention);
  runtime::KvCache& cache = caches_[static_cast<std::size_t>(index)];
  cache.append(k, v, n, staging_);
  const float scale = KALIBRI_MUTATE(1.0F / std::sqrt(static_cast<float>(d)), "attn_scale_1", 1.0F);
  const std::int64_t group = n_heads / n_kv;
  const std::int64_t together = KALIBRI_MUTATE(heads_together(c), "gqa_modulo", 1);
  workers_.each(n * n_heads / together, [&](std::int64_t task, int worker) {
    const std::int64_t t = task / (n_heads / together);
    const std::int64_t head = task % (n_heads / together) * together;
    const std::int64_t kv_head = KALIBRI_MUTATE(head / group, "gqa_modulo", head % n_kv);
    runtime::VisibleRows rows = cache.visible(taps.first_pos + t);
    AlignedFloats& scores = scores_[static_cast<std::size_t>(worker)];
    if (static_cast<std::int64_t>(scores.size()) < together * rows.n_rows())
      scores.resize(static_cast<std::size_t>(together * rows.n_rows()));
    kernels::AttentionHeads call;
    call.n_heads = together;
    call.queries = q + (t * n_heads + head) * d;
    for (kernels::KeyRun& run : std::span(rows.runs, static_cast<std::size_t>(rows.n_runs))) {
      run.keys += kv_head * d;
      run.values += kv_head * d;
    }
    call.runs = rows.runs;
    call.n_runs = rows.n_runs;
    call.row_stride = n_kv * d;
    call.head_dim = d;
    call.scale = scale;
    call.scores = scores.data();
    call.out = context + (t * n_heads + head) * d;
    kernels().attention(call);
    workers_.round(call.out, together * d);
  });
  taps.give("attention_context", {n_heads * d}, context);
  workers_.enter(Phase::mixer);

  linear(workers_, weights_.form(index, layer.o_proj), context, n, branch);
  taps.give("attention_out", {c.hidden_size}, branch);
  const bool norms_branch =
      KALIBRI_MUTATE(KALIBRI_MUTATE(true, "no_post_attn_norm", false), "norm_after_residual_add", false);
  add_branch(residual, branch, layer.post_attn_norm, norms_branch, n);
  if (KALIBRI_MUTATE(false, "norm_after_residual_add", true))
    rms_norm_rows(residual, layer.post_attn_norm, n, residual);
  taps.give("post_attention", {c.hidden_size}, residual);
}

void Kolibri1Sequence::experts(const Kolibri1Layer& layer, std::int64_t index, float* residual, const TapWriter& taps) {
  const checkpoint::Kolibri1Config& c = weights_.config;
  const std::int64_t n = taps.n_rows;
  const std::int64_t h = c.hidden_size;
  const std::int64_t k = c.num_experts_per_tok;
  float* x = normed_.floats(n * h);
  float* routed = branch_.floats(n * h);
  float* shared = shared_.floats(n * h);
  float* router_logits = router_logits_.floats(n * c.num_experts);
  float* expert_weights = weights_of_experts_.floats(n * k);
  expert_ids_.resize(static_cast<std::size_t>(n * k));
  std::vector<float> gaps(static_cast<std::size_t>(n));

  workers_.enter(Phase::router);
  rms_norm_rows(residual, layer.post_attention_layernorm, n, x);
  taps.give("pre_mlp", {h}, x);
  std::vector<float> rounded;
  const float* router_input = x;
  if (KALIBRI_MUTATE(false, "router_input_bf16", true)) {
    rounded.assign(x, x + n * h);
    std::transform(rounded.begin(), rounded.end(), rounded.begin(), rounded_to_bf16);
    router_input = rounded.data();
  }
  linear(workers_, weights_.form(index, layer.router), router_input, n, router_logits, runtime::Output::exact);
  workers_.rows(n, 8, [&](std::int64_t t) {
    const std::span<float> logits{router_logits + t * c.num_experts, static_cast<std::size_t>(c.num_experts)};
    for (float& z : logits) z = KALIBRI_MUTATE(z, "router_logits_bf16", rounded_to_bf16(z));
    std::vector<float> scratch(logits.size());
    std::int32_t* ids = expert_ids_.data() + t * k;
    gaps[static_cast<std::size_t>(t)] = select_kolibri1(logits, layer.expert_bias, k, ids, scratch);
    if (choices_ != nullptr) {
      const auto forced = choices_->experts(index, taps.first_pos + t);
      std::copy(forced.begin(), forced.end(), ids);
    }
    weigh_kolibri1(logits, scratch, {ids, static_cast<std::size_t>(k)}, expert_weights + t * k);
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
  swiglu(workers_, shared_expert, x, n, shared, expert_buffers_);  // while routed ones are read
  workers_.enter(Phase::experts);
  routed_experts.run(workers_, x, h, expert_weights, routed, expert_buffers_);
  taps.give("routed_out", {h}, routed);
  taps.give("shared_out", {h}, shared);
  workers_.enter(Phase::other);
  const bool normed_alone = KALIBRI_MUTATE(false, "post_ffn_norm_routed_only", true);
  if (KALIBRI_MUTATE(true, "shared_expert_omitted", false) && !normed_alone) {
    workers_.rows(n, 16, [&](std::int64_t t) { kernels().add(shared + t * h, h, routed + t * h); });
    workers_.round_rows(routed, n, h);
  }
  taps.give("moe_out", {h}, routed);
  add_branch(residual, routed, layer.post_ffn_norm, KALIBRI_MUTATE(true, "no_post_ffn_norm", false), n);
  if (normed_alone) add_branch(residual, shared, layer.post_ffn_norm, false, n);
}

void Kolibri1Sequence::run_layer(std::int64_t layer, std::span<const std::int32_t> ids, float* residual,
                                 runtime::TapSink* sink) {
  const TapWriter taps{sink, static_cast<int>(layer), layer_position(layer), static_cast<std::int64_t>(ids.size())};
  const Kolibri1Layer& weights = weights_.layers[static_cast<std::size_t>(layer)];
  attention(weights, layer, residual, taps);
  experts(weights, layer, residual, taps);
  taps.give("residual", {weights_.config.hidden_size}, residual);
}

void Kolibri1Sequence::head(const float* residual, std::int64_t n, float* final_norm, float* logits) const {
  const std::int64_t h = weights_.config.hidden_size;
  if (KALIBRI_MUTATE(true, "no_final_norm", false)) {
    rms_norm_rows(residual, weights_.norm, n, final_norm);
  } else {
    std::copy_n(residual, n * h, final_norm);
  }
  if (logits == nullptr) return;
  workers_.enter(Phase::head);
  const auto output = workers_.arithmetic().rounds_all() ? runtime::Output::rounded : runtime::Output::exact;
  linear(workers_, weights_.form(kNoLayer, weights_.lm_head), final_norm, n, logits, output);
  workers_.enter(Phase::other);
}

}  // namespace kalibri::model
