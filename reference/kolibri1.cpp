// Source: the released checkpoints' tensors, and the forward pass of Kolibri 1 in vLLM (Apache-2.0).
#include "reference/kolibri1.hpp"

#include <memory>

#include "reference/attention.hpp"
#include "reference/experts.hpp"
#include "reference/kolibri1_config.hpp"

namespace kalibri::reference {
namespace {

struct Layer {
  StoredMatrix input_layernorm;
  StoredMatrix q_proj, k_proj, v_proj, o_proj;
  StoredMatrix q_norm, k_norm;
  StoredMatrix post_attn_norm;            // on the attention branch, before it is added
  StoredMatrix post_attention_layernorm;  // before router and experts, despite its name
  StoredMatrix gate;
  StoredMatrix expert_bias;
  std::vector<Expert> experts;
  Expert shared_experts;
  StoredMatrix post_ffn_norm;  // on the expert branch, before it is added
  bool is_sliding = false;
};

Expert find_expert(const Checkpoint& checkpoint, const std::string& prefix, std::int64_t width,
                   std::int64_t hidden_size) {
  return {find_matrix(checkpoint, prefix + ".gate_proj.weight", width, hidden_size),
          find_matrix(checkpoint, prefix + ".up_proj.weight", width, hidden_size),
          find_matrix(checkpoint, prefix + ".down_proj.weight", hidden_size, width)};
}

/// Each expert in three tensors of its own, as released, or all in the three stacks of an MLX directory.
std::vector<Expert> find_experts(const Checkpoint& checkpoint, const std::string& mlp, const Kolibri1Config& c) {
  const std::string stack = mlp + "switch_mlp.";
  if (is_stacked(checkpoint, stack, mlp + "experts.0.")) {
    return find_stacked_experts(checkpoint, stack, c.num_experts, c.moe_intermediate_size, c.hidden_size);
  }
  std::vector<Expert> experts;
  for (std::int64_t e = 0; e < c.num_experts; ++e) {
    const std::string expert = mlp + "experts." + std::to_string(e);
    experts.push_back(find_expert(checkpoint, expert, c.moe_intermediate_size, c.hidden_size));
  }
  return experts;
}

Layer find_layer(const Checkpoint& checkpoint, const Kolibri1Config& c, const Precision& precision, std::int64_t l) {
  const std::string prefix = "model.layers." + std::to_string(l) + ".";
  const auto matrix = [&](const char* name, std::int64_t n_rows, std::int64_t n_cols) {
    return in_form(find_matrix(checkpoint, prefix + name, n_rows, n_cols), precision.dense);
  };
  const auto vector = [&](const char* name, std::int64_t n) { return find_vector(checkpoint, prefix + name, n); };
  const std::int64_t q_width = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_width = c.num_key_value_heads * c.head_dim;
  Layer layer;
  layer.input_layernorm = vector("input_layernorm.weight", c.hidden_size);
  layer.q_proj = matrix("self_attn.q_proj.weight", q_width, c.hidden_size);
  layer.k_proj = matrix("self_attn.k_proj.weight", kv_width, c.hidden_size);
  layer.v_proj = matrix("self_attn.v_proj.weight", kv_width, c.hidden_size);
  layer.o_proj = matrix("self_attn.o_proj.weight", c.hidden_size, q_width);
  layer.q_norm = vector("self_attn.q_norm.weight", c.head_dim);
  layer.k_norm = vector("self_attn.k_norm.weight", c.head_dim);
  layer.post_attn_norm = vector("post_attn_norm.weight", c.hidden_size);
  layer.post_attention_layernorm = vector("post_attention_layernorm.weight", c.hidden_size);
  layer.gate = as_router(matrix("mlp.gate.weight", c.num_experts, c.hidden_size), precision.dense);
  const bool is_mlx = checkpoint.find(prefix + "mlp.expert_bias") != nullptr;
  layer.expert_bias = is_mlx ? find_f32_vector(checkpoint, prefix + "mlp.expert_bias", c.num_experts)
                             : vector("moe.router.expert_bias", c.num_experts);
  for (const Expert& expert : find_experts(checkpoint, prefix + "mlp.", c)) {
    layer.experts.push_back(in_form(expert, precision.experts));
  }
  layer.shared_experts =
      in_form(find_expert(checkpoint, prefix + "mlp.shared_experts", c.shared_expert_intermediate_size, c.hidden_size),
              precision.dense);
  layer.post_ffn_norm = vector("post_ffn_norm.weight", c.hidden_size);
  layer.is_sliding = c.is_sliding[static_cast<std::size_t>(l)];
  return layer;
}

class Kolibri1 {
 public:
  Kolibri1(const Checkpoint& checkpoint, const Rounding& r)
      : config_(read_kolibri1_config(checkpoint)),
        r_(r),
        embed_tokens_(
            in_form(find_matrix(checkpoint, "model.embed_tokens.weight", config_.vocab_size, config_.hidden_size),
                    r.precision().embed)),
        norm_(find_vector(checkpoint, "model.norm.weight", config_.hidden_size)) {
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      layers_.push_back(find_layer(checkpoint, config_, r.precision(), l));
    }
  }

  [[nodiscard]] const Kolibri1Config& config() const { return config_; }

  [[nodiscard]] at::Tensor embed(std::span<const Prompt> prompts) const {
    std::vector<std::int64_t> ids;
    for (const Prompt& prompt : prompts) ids.insert(ids.end(), prompt.tokens.begin(), prompt.tokens.end());
    return r_(load_rows(embed_tokens_, ids, r_.dtype()));
  }

  [[nodiscard]] at::Tensor run_layer(const Layer& layer, const at::Tensor& residual, std::span<const Prompt> prompts,
                                     const Record& record) const {
    const at::Tensor a = attention(layer, norm(residual, layer.input_layernorm), prompts, record);
    const at::Tensor h = r_.add(residual, norm(a, layer.post_attn_norm));
    record("attention_out", 0, a);
    record("post_attention", 0, h);
    const at::Tensor x = norm(h, layer.post_attention_layernorm);
    const at::Tensor y = mixture(layer, x, record);
    record("pre_mlp", 0, x);
    record("moe_out", 0, y);
    return r_.add(h, norm(y, layer.post_ffn_norm));
  }

  [[nodiscard]] at::Tensor run_layer(std::int64_t l, const at::Tensor& residual, std::span<const Prompt> prompts,
                                     const Record& record) const {
    return run_layer(layers_[static_cast<std::size_t>(l)], residual, prompts, record);
  }

  [[nodiscard]] at::Tensor final_norm(const at::Tensor& residual) const { return norm(residual, norm_); }

 private:
  [[nodiscard]] at::Tensor norm(const at::Tensor& v, const StoredMatrix& weight) const {
    return r_(rms_norm(v, r_.load(weight), config_.rms_norm_eps));
  }

  /// Section 3.1, one prompt after the other. x [N, H] -> [N, H].
  [[nodiscard]] at::Tensor attention(const Layer& layer, const at::Tensor& x, std::span<const Prompt> prompts,
                                     const Record& record) const {
    const Linear q_proj = r_.linear(layer.q_proj);
    const Linear k_proj = r_.linear(layer.k_proj);
    const Linear v_proj = r_.linear(layer.v_proj);
    const Linear o_proj = r_.linear(layer.o_proj);
    at::Tensor out = at::empty_like(x);
    for (const Prompt& prompt : prompts) {
      const at::Tensor rows = x.slice(0, prompt.first_row, prompt.end_row());
      const auto heads = [&](const Linear& projection) {
        return r_(projection(rows)).view({prompt.n_rows(), -1, config_.head_dim});
      };
      at::Tensor q = norm(heads(q_proj), layer.q_norm);
      at::Tensor k = norm(heads(k_proj), layer.k_norm);
      const at::Tensor v = r_.kv(heads(v_proj));
      if (layer.is_sliding) {  // full layers have no positions at all
        const Rotation turn = rotation(prompt.n_rows(), config_.head_dim, config_.rope_theta, r_.dtype());
        q = r_(rotate(q, turn));
        k = r_(rotate(k, turn));
      }
      k = r_.kv(k);
      const at::Tensor context = r_(causal_attention(q, k, v, layer.is_sliding ? config_.sliding_window : 0));
      out.slice(0, prompt.first_row, prompt.end_row()).copy_(r_(o_proj(context)));
      record("q", prompt.first_row, q.flatten(1));
      record("k", prompt.first_row, k.flatten(1));
      record("v", prompt.first_row, v.flatten(1));
      record("attention_context", prompt.first_row, context);
    }
    return out;
  }

  /// Section 3.2 and the experts: x [N, H] -> [N, H].
  [[nodiscard]] at::Tensor mixture(const Layer& layer, const at::Tensor& x, const Record& record) const {
    const at::Tensor z = r_.linear(layer.gate)(x);  // never rounded
    const Selection selection = select_top(z + r_.load(layer.expert_bias), config_.num_experts_per_tok);
    // Of the unbiased logit, not renormalised.
    const at::Tensor w = r_.unless_served(at::sigmoid(z.gather(1, selection.ids)));
    const at::Tensor routed = routed_sum(r_, x, selection.ids, w, layer.experts);
    const at::Tensor shared = swiglu(r_, x, layer.shared_experts);
    record("router_logits", 0, z);
    if (selection.gap.defined()) record("router_gap", 0, selection.gap);
    record("expert_ids", 0, selection.ids.to(at::kInt));
    record("expert_weights", 0, w);
    record("routed_out", 0, routed);
    record("shared_out", 0, shared);
    return r_(routed + shared);
  }

  Kolibri1Config config_;
  Rounding r_;
  StoredMatrix embed_tokens_;
  StoredMatrix norm_;
  std::vector<Layer> layers_;
};

}  // namespace

Model open_kolibri1(const Checkpoint& checkpoint, const Rounding& r) {
  const auto kolibri = std::make_shared<const Kolibri1>(checkpoint, r);
  const Kolibri1Config& config = kolibri->config();
  Model model;
  model.model_type = "kolibri1";
  model.n_layers = config.num_hidden_layers;
  model.hidden_size = config.hidden_size;
  model.vocab_size = config.vocab_size;
  model.max_position_embeddings = config.max_position_embeddings;
  model.taps = {"attention_context", "attention_out", "k", "moe_out", "post_attention", "pre_mlp", "q",
                "routed_out",        "shared_out",    "v"};
  model.head =
      in_form(find_matrix(checkpoint, "lm_head.weight", config.vocab_size, config.hidden_size), r.precision().head);
  model.embed = [kolibri](std::span<const Prompt> prompts) { return kolibri->embed(prompts); };
  model.run_layer = [kolibri](std::int64_t l, const at::Tensor& residual, std::span<const Prompt> prompts,
                              const Record& record) { return kolibri->run_layer(l, residual, prompts, record); };
  model.final_norm = [kolibri](const at::Tensor& residual) { return kolibri->final_norm(residual); };
  return model;
}

}  // namespace kalibri::reference
