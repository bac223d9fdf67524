// Source: transformers, modeling_qwen4_exp.py: names of the tensors and the forward pass.
#include "reference/qwen4_exp.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "reference/delta_net.hpp"
#include "reference/experts.hpp"
#include "reference/gated_residual.hpp"
#include "reference/ngram.hpp"
#include "reference/qwen4_exp_config.hpp"
#include "reference/qwen4_exp_tensors.hpp"
#include "reference/sparse_attention.hpp"

namespace kalibri::reference {
namespace {

struct Mixture {
  StoredMatrix gate;
  std::vector<Expert> experts;
  Expert shared_expert;
  StoredMatrix shared_expert_gate;
};

struct Layer {
  std::optional<Ngram> ple;
  GatedResidual attn_hyper_connection;
  std::optional<SparseAttention> self_attn;  // one of these two
  std::optional<DeltaNet> linear_attn;
  GatedResidual mlp_hyper_connection;
  Mixture mlp;
};

Expert find_expert(const Qwen4ExpTensors& tensors, std::int64_t width) {
  const std::int64_t hidden_size = tensors.config.hidden_size;
  return {tensors.matrix("gate_proj.weight", width, hidden_size), tensors.matrix("up_proj.weight", width, hidden_size),
          tensors.matrix("down_proj.weight", hidden_size, width)};
}

/// All experts in two tensors, experts.gate_up_proj [E, 2 I, H] and experts.down_proj [E, H, I]; in the three stacks of
/// an MLX directory; or each in three of its own. `tensors` are those below "mlp.".
std::vector<Expert> find_experts(const Qwen4ExpTensors& tensors) {
  const Qwen4ExpConfig& c = tensors.config;
  const std::int64_t width = c.moe_intermediate_size;
  const Qwen4ExpTensors of_experts = tensors.below("experts.");
  const bool is_fused = tensors.checkpoint.find(of_experts.prefix + "gate_up_proj") != nullptr;
  const std::string stack = tensors.prefix + "switch_mlp.";
  if (is_stacked(tensors.checkpoint, stack, of_experts.prefix + (is_fused ? "" : "0."))) {
    return find_stacked_experts(tensors.checkpoint, stack, c.num_experts, width, c.hidden_size);
  }
  std::vector<Expert> experts;
  if (!is_fused) {
    for (std::int64_t e = 0; e < c.num_experts; ++e) {
      experts.push_back(find_expert(of_experts.below(std::to_string(e) + "."), width));
    }
    return experts;
  }
  const auto find = [&](const char* name, std::int64_t n_rows, std::int64_t n_cols) {
    return find_stack(tensors.checkpoint, of_experts.prefix + name, c.num_experts, n_rows, n_cols);
  };
  const StoredMatrix gate_up = find("gate_up_proj", 2 * width, c.hidden_size);
  const StoredMatrix down = find("down_proj", c.hidden_size, width);
  for (std::int64_t e = 0; e < c.num_experts; ++e) {
    experts.push_back({slice_rows(gate_up, 2 * e * width, width), slice_rows(gate_up, (2 * e + 1) * width, width),
                       slice_rows(down, e * c.hidden_size, c.hidden_size)});
  }
  return experts;
}

Layer find_layer(const Qwen4ExpTensors& tensors, std::int64_t l) {
  const Qwen4ExpConfig& c = tensors.config;
  const WeightForm& dense = tensors.precision.dense;
  Layer layer;
  const auto ple = std::ranges::find(c.ple_layers, l);
  if (ple != c.ple_layers.end()) layer.ple = find_ngram(tensors.below("ple."), ple - c.ple_layers.begin());
  layer.attn_hyper_connection = find_gated_residual(tensors.below("attn_hyper_connection."), /*injects=*/true);
  if (c.is_sparse[static_cast<std::size_t>(l)]) {
    layer.self_attn = find_sparse_attention(tensors.below("self_attn."));
  } else {
    layer.linear_attn = find_delta_net(tensors.below("linear_attn."));
  }
  layer.mlp_hyper_connection = find_gated_residual(tensors.below("mlp_hyper_connection."), /*injects=*/true);
  layer.mlp.gate = as_router(tensors.matrix("mlp.gate.weight", c.num_experts, c.hidden_size), dense);
  for (const Expert& expert : find_experts(tensors.below("mlp."))) {
    layer.mlp.experts.push_back(in_form(expert, tensors.precision.experts));
  }
  layer.mlp.shared_expert = find_expert(tensors.below("mlp.shared_expert."), c.shared_expert_intermediate_size);
  layer.mlp.shared_expert_gate = as_router(tensors.matrix("mlp.shared_expert_gate.weight", 1, c.hidden_size), dense);
  return layer;
}

/// "model." or, beside a vision tower, "model.language_model.".
std::string find_prefix(const Checkpoint& checkpoint) {
  const std::string nested = "model.language_model.";
  return checkpoint.find(nested + "embed_tokens.weight") != nullptr ? nested : "model.";
}

class Qwen4Exp {
 public:
  Qwen4Exp(const Checkpoint& checkpoint, const Rounding& r) : config_(read_qwen4_exp_config(checkpoint)), r_(r) {
    const Precision& precision = r.precision();
    const Qwen4ExpTensors tensors{checkpoint, config_, precision, find_prefix(checkpoint)};
    embed_tokens_ =
        in_form(tensors.matrix("embed_tokens.weight", config_.vocab_size, config_.hidden_size), precision.embed);
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      layers_.push_back(find_layer(tensors.below("layers." + std::to_string(l) + "."), l));
    }
    mixer_ = find_gated_residual(tensors.below("hyper_connection_mixer."), /*injects=*/false);
    lm_head_ = embed_tokens_;
    if (config_.tie_word_embeddings) return;
    const Qwen4ExpTensors outside{checkpoint, config_, precision, ""};
    lm_head_ = in_form(outside.matrix("lm_head.weight", config_.vocab_size, config_.hidden_size), precision.head);
  }

  [[nodiscard]] const Qwen4ExpConfig& config() const { return config_; }
  [[nodiscard]] const StoredMatrix& lm_head() const { return lm_head_; }

  [[nodiscard]] at::Tensor embed(std::span<const Prompt> prompts) const {
    std::vector<std::int64_t> ids;
    for (const Prompt& prompt : prompts) ids.insert(ids.end(), prompt.tokens.begin(), prompt.tokens.end());
    return r_(load_rows(embed_tokens_, ids, r_.dtype()));
  }

  [[nodiscard]] at::Tensor run_layer(std::int64_t l, const at::Tensor& residual, std::span<const Prompt> prompts,
                                     const Record& record) const {
    const Layer& layer = layers_[static_cast<std::size_t>(l)];
    at::Tensor x = residual;
    if (layer.ple) x = r_.add(residual, run_ngram(r_, *layer.ple, residual, prompts, record));
    const Mixed attn = mix(r_, layer.attn_hyper_connection, x);
    const at::Tensor a = layer.self_attn ? run_sparse_attention(r_, *layer.self_attn, attn.u, prompts, record)
                                         : run_delta_net(r_, *layer.linear_attn, attn.u, prompts, record);
    record("attn_mixed", 0, attn.u);
    record("attn_inject", 0, attn.g);
    record("mixer_out", 0, a);
    x = inject(r_, x, attn.g, a);
    const Mixed mlp = mix(r_, layer.mlp_hyper_connection, x);
    const at::Tensor m = mixture(layer.mlp, mlp.u, record);
    record("mlp_mixed", 0, mlp.u);
    record("mlp_inject", 0, mlp.g);
    record("moe_out", 0, m);
    return inject(r_, x, mlp.g, m);
  }

  [[nodiscard]] at::Tensor final_norm(const at::Tensor& residual) const { return mix(r_, mixer_, residual).u; }

 private:
  /// Section 3.4: u [N, H] -> [N, H].
  [[nodiscard]] at::Tensor mixture(const Mixture& mlp, const at::Tensor& u, const Record& record) const {
    const at::Tensor z = r_.linear(mlp.gate)(u);  // never rounded
    const Selection selection = select_top(z, config_.num_experts_per_tok);
    at::Tensor w = at::softmax(z, -1).gather(1, selection.ids);
    if (config_.norm_topk_prob) w = w / w.sum(1, /*keepdim=*/true);
    w = r_.unless_served(w);
    const at::Tensor routed = routed_sum(r_, u, selection.ids, w, mlp.experts);
    const at::Tensor gate = r_(at::sigmoid(r_(r_.linear(mlp.shared_expert_gate)(u))));  // [N, 1]
    const at::Tensor shared = r_(gate * swiglu(r_, u, mlp.shared_expert));
    record("router_logits", 0, z);
    if (selection.gap.defined()) record("router_gap", 0, selection.gap);
    record("expert_ids", 0, selection.ids.to(at::kInt));
    record("expert_weights", 0, w);
    record("routed_out", 0, routed);
    record("shared_out", 0, shared);
    return r_(routed + shared);
  }

  Qwen4ExpConfig config_;
  Rounding r_;
  StoredMatrix embed_tokens_;
  std::vector<Layer> layers_;
  GatedResidual mixer_;
  StoredMatrix lm_head_;
};

}  // namespace

Model open_qwen4_exp(const Checkpoint& checkpoint, const Rounding& r) {
  const auto qwen = std::make_shared<const Qwen4Exp>(checkpoint, r);
  const Qwen4ExpConfig& config = qwen->config();
  Model model;
  model.model_type = "qwen4_exp";
  model.n_layers = config.num_hidden_layers;
  model.hidden_size = config.hidden_size;
  model.n_streams = config.hc_count;
  model.vocab_size = config.vocab_size;
  model.max_position_embeddings = config.max_position_embeddings;
  model.taps = {"attention_context", "attn_inject", "attn_mixed", "delta_core",      "index_scores",    "k",
                "mixer_out",         "mlp_inject",  "mlp_mixed",  "moe_out",         "ngram_embedding", "ngram_rows",
                "ple_out",           "q",           "routed_out", "selected_blocks", "shared_out",      "v"};
  model.head = qwen->lm_head();
  model.embed = [qwen](std::span<const Prompt> prompts) { return qwen->embed(prompts); };
  model.run_layer = [qwen](std::int64_t l, const at::Tensor& residual, std::span<const Prompt> prompts,
                           const Record& record) { return qwen->run_layer(l, residual, prompts, record); };
  model.final_norm = [qwen](const at::Tensor& residual) { return qwen->final_norm(residual); };
  return model;
}

}  // namespace kalibri::reference
