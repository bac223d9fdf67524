// Kolibri 1 over packed rows. The formulas are those of reference/kolibri1.cpp.
#include <cmath>
#include <nlohmann/json.hpp>

#include "reference/attention.hpp"
#include "reference/kolibri1_config.hpp"
#include "reference/training/first_weights.hpp"
#include "reference/training/functions.hpp"
#include "reference/training/trainee.hpp"

namespace kalibri::reference::training {
namespace {

Kolibri1Config nano_config() {
  Kolibri1Config c;
  c.hidden_size = 256;
  c.num_hidden_layers = 5;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-6;
  c.vocab_size = 2304;
  c.rope_theta = 10000;
  c.num_experts = 16;
  c.num_experts_per_tok = 3;
  c.moe_intermediate_size = 64;
  c.shared_expert_intermediate_size = 64;
  c.sliding_window = 33;
  c.is_sliding = {true, true, true, true, false};
  return c;
}

Kolibri1Config tiny_config() {
  Kolibri1Config c = nano_config();
  c.hidden_size = 24;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.head_dim = 8;
  c.vocab_size = 40;
  c.num_experts = 6;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 8;
  c.shared_expert_intermediate_size = 12;
  c.sliding_window = 5;
  c.is_sliding = {true, false};
  return c;
}

constexpr float kCommon = 0.35F;  // what all embeddings begin with in common: heads can tell places by it alone

std::string layer_name(std::size_t layer) { return "model.layers." + std::to_string(layer) + "."; }

ParameterTable make_table(const Kolibri1Config& c) {
  const std::int64_t h = c.hidden_size;
  const float in = 1 / std::sqrt(static_cast<float>(h));  // keeps the variance of a normed input
  const std::int64_t q_width = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_width = c.num_key_value_heads * c.head_dim;
  ParameterTable table;
  const auto mlp = [&](const std::string& prefix, std::int64_t width) {
    table.matrix(prefix + ".gate_proj.weight", {width, h}, in);
    table.matrix(prefix + ".up_proj.weight", {width, h}, in);
    table.matrix(prefix + ".down_proj.weight", {h, width}, 1 / std::sqrt(static_cast<float>(width)));
  };
  table.matrix("model.embed_tokens.weight", {c.vocab_size, h}, 0.5F, kCommon);
  table.matrix("lm_head.weight", {c.vocab_size, h}, in / 2);
  table.constant("model.norm.weight", {h}, 1);
  for (std::size_t layer = 0; layer < c.is_sliding.size(); ++layer) {
    const std::string p = layer_name(layer);
    table.constant(p + "input_layernorm.weight", {h}, 1);
    table.matrix(p + "self_attn.q_proj.weight", {q_width, h}, in);
    table.matrix(p + "self_attn.k_proj.weight", {kv_width, h}, in);
    table.matrix(p + "self_attn.v_proj.weight", {kv_width, h}, in);
    table.matrix(p + "self_attn.o_proj.weight", {h, q_width}, 1 / std::sqrt(static_cast<float>(q_width)));
    const float sharp = c.is_sliding[layer] ? 1.2F : 1.6F;  // more keys need larger scores to single one out
    table.constant(p + "self_attn.q_norm.weight", {c.head_dim}, sharp);
    table.constant(p + "self_attn.k_norm.weight", {c.head_dim}, sharp);
    table.constant(p + "post_attn_norm.weight", {h}, 0.25F);
    table.constant(p + "post_attention_layernorm.weight", {h}, 1);
    table.matrix(p + "mlp.gate.weight", {c.num_experts, h}, in);
    table.constant(p + "moe.router.expert_bias", {c.num_experts}, 0, /*is_learnt=*/false);
    table.matrix(p + "mlp.experts.gate_up_proj", {c.num_experts, 2 * c.moe_intermediate_size, h}, in);
    table.matrix(p + "mlp.experts.down_proj", {c.num_experts, h, c.moe_intermediate_size},
                 1 / std::sqrt(static_cast<float>(c.moe_intermediate_size)));
    mlp(p + "mlp.shared_experts", c.shared_expert_intermediate_size);
    table.constant(p + "post_ffn_norm.weight", {h}, 0.25F);
  }
  return table;
}

/// Attention with a window of W keys: queries in chunks of W - 1, each with its own chunk's keys and the one before.
/// q [B, T, heads, D], k and v [B, T, kv_heads, D] -> [B, T, heads, D]; T is a multiple of the chunk. masked
/// [B * chunks, chunk, 2 * chunk].
at::Tensor window_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& masked) {
  const std::int64_t chunk = masked.size(1);
  const auto with_previous = [&](const at::Tensor& x) {
    const at::Tensor nothing = at::zeros({x.size(0), chunk, x.size(2), x.size(3)}, x.options());
    const at::Tensor previous = at::cat({nothing, x.narrow(1, 0, x.size(1) - chunk)}, 1);
    const auto chunked = [&](const at::Tensor& y) { return y.reshape({-1, chunk, y.size(2), y.size(3)}); };
    return at::cat({chunked(previous), chunked(x)}, 1);
  };
  return masked_attention(q.reshape({-1, chunk, q.size(2), q.size(3)}), with_previous(k), with_previous(v), masked)
      .reshape_as(q);
}

/// The mask of window_attention: later keys, those W or more back, other documents', and those before the row.
at::Tensor window_mask(const Batch& batch, std::int64_t window) {
  const std::int64_t chunk = window - 1;
  const std::int64_t n_chunks = batch.n_tokens / chunk;
  at::Tensor masked = at::ones({batch.n_rows * n_chunks, chunk, 2 * chunk}, at::kBool);
  bool* out = masked.data_ptr<bool>();
  for (std::int64_t row = 0; row < batch.n_rows; ++row) {
    const std::int32_t* const documents = batch.documents.data() + row * batch.n_tokens;
    for (std::int64_t query = 0; query < n_chunks * chunk; ++query) {
      for (std::int64_t j = 0; j < 2 * chunk; ++j) {
        const std::int64_t key = query / chunk * chunk - chunk + j;
        *out++ = key < 0 || key > query || query - key > window - 1 || documents[key] != documents[query];
      }
    }
  }
  return masked;
}

/// `batch` with rows that are a multiple of `chunk` long.
Batch lengthen(const Batch& batch, std::int64_t chunk) {
  const std::int64_t n_tokens = (batch.n_tokens + chunk - 1) / chunk * chunk;
  const auto n = static_cast<std::size_t>(batch.n_rows * n_tokens);
  Batch longer{batch.n_rows, n_tokens, std::vector<std::int64_t>(n, 0), std::vector<std::int32_t>(n, -1),
               std::vector<std::int64_t>(n, -100)};
  for (std::int64_t i = 0; i < batch.n_rows * batch.n_tokens; ++i) {
    const auto from = static_cast<std::size_t>(i);
    const auto to = static_cast<std::size_t>(i / batch.n_tokens * n_tokens + i % batch.n_tokens);
    longer.ids[to] = batch.ids[from];
    longer.documents[to] = batch.documents[from];
    longer.targets[to] = batch.targets[from];
  }
  return longer;
}

Outputs forward(const Kolibri1Config& c, const Weights& w, const Batch& given, Choices& choices) {
  const Batch batch = lengthen(given, c.sliding_window - 1);
  const Rotation turn = rotation(batch.n_tokens, c.head_dim, c.rope_theta, w.values().scalar_type());
  const at::Tensor near = window_mask(batch, c.sliding_window);
  const at::Tensor far = mask_of(batch);
  at::Tensor h = at::embedding(w["model.embed_tokens.weight"], ids_tensor(batch));  // [N, H]
  for (std::size_t layer = 0; layer < c.is_sliding.size(); ++layer) {
    const std::string p = layer_name(layer);
    const auto norm = [&](const at::Tensor& x, const char* name) { return rms_norm(x, w[p + name], c.rms_norm_eps); };
    const at::Tensor a = norm(h, "input_layernorm.weight");
    const auto heads = [&](const char* name) {
      return apply_linear(a, w[p + name]).reshape({batch.n_rows, batch.n_tokens, -1, c.head_dim});
    };
    at::Tensor q = norm(heads("self_attn.q_proj.weight"), "self_attn.q_norm.weight");
    at::Tensor k = norm(heads("self_attn.k_proj.weight"), "self_attn.k_norm.weight");
    const at::Tensor v = heads("self_attn.v_proj.weight");
    at::Tensor context;
    if (c.is_sliding[layer]) {
      context = window_attention(rotate(q, turn), rotate(k, turn), v, near);
    } else {
      context = masked_attention(q, k, v, far);
    }
    const at::Tensor out = apply_linear(context.reshape({h.size(0), -1}), w[p + "self_attn.o_proj.weight"]);
    h = h + norm(out, "post_attn_norm.weight");

    const at::Tensor x = norm(h, "post_attention_layernorm.weight");
    const at::Tensor z = apply_linear(x, w[p + "mlp.gate.weight"]);
    const at::Tensor ids = choices.choose(choices.expert_ids, layer, [&] {
      return std::get<1>((z.detach() + w[p + "moe.router.expert_bias"]).topk(c.num_experts_per_tok, 1));
    });
    const at::Tensor weights = at::sigmoid(z.gather(1, ids));
    const at::Tensor y =
        routed_experts(x, ids, weights, w[p + "mlp.experts.gate_up_proj"], w[p + "mlp.experts.down_proj"]) +
        swiglu(x, w, p + "mlp.shared_experts");
    h = h + norm(y, "post_ffn_norm.weight");
  }
  const at::Tensor f = rms_norm(h, w["model.norm.weight"], c.rms_norm_eps)
                           .reshape({batch.n_rows, batch.n_tokens, c.hidden_size})
                           .narrow(1, 0, given.n_tokens);
  return {apply_linear(f, w["lm_head.weight"]).reshape({-1, c.vocab_size}), {}};
}

Format format_of(const Parameter& parameter) {
  const bool is_linear = parameter.name.find("_proj") != std::string::npos;  // attention and experts, not the router
  return is_linear ? Format::fp8 : Format::bf16;
}

nlohmann::ordered_json config_json(const Kolibri1Config& c, std::int64_t end_of_turn, std::int64_t end_of_text) {
  nlohmann::ordered_json types;
  nlohmann::ordered_json gates;
  for (std::size_t layer = 0; layer < c.is_sliding.size(); ++layer) {
    types.push_back(c.is_sliding[layer] ? "sliding_attention" : "full_attention");
    gates.push_back(layer_name(layer) + "mlp.gate");
  }
  return {{"architectures", {"Kolibri1ForCausalLM"}},
          {"model_type", "kolibri1"},
          {"hidden_size", c.hidden_size},
          {"num_hidden_layers", c.num_hidden_layers},
          {"num_attention_heads", c.num_attention_heads},
          {"num_key_value_heads", c.num_key_value_heads},
          {"head_dim", c.head_dim},
          {"hidden_act", "silu"},
          {"max_position_embeddings", c.max_position_embeddings},
          {"rms_norm_eps", c.rms_norm_eps},
          {"vocab_size", c.vocab_size},
          {"rope_theta", c.rope_theta},
          {"num_experts", c.num_experts},
          {"num_experts_per_tok", c.num_experts_per_tok},
          {"moe_intermediate_size", c.moe_intermediate_size},
          {"shared_expert_intermediate_size", c.shared_expert_intermediate_size},
          {"norm_topk_prob", false},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"tie_word_embeddings", false},
          {"use_cache", true},
          {"use_sliding_window", true},
          {"sliding_window", c.sliding_window},
          {"layer_types", types},
          {"bos_token_id", nullptr},
          {"eos_token_id", end_of_turn},
          {"pad_token_id", end_of_text},
          {"dtype", "bfloat16"},
          {"head_dtype", "float32"},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", gates}}}};
}

}  // namespace

Trainee make_kolibri1_trainee(bool nano) {
  const Kolibri1Config c = nano ? nano_config() : tiny_config();
  // Behind 256 bytes and 2,034 merges: <|text|>, <|endoftext|>, <|pad|>, <|chat|>, <|im_start|>, <|/role|>, <|im_end|>.
  const std::int64_t end_of_text = nano ? 2291 : 1;
  const std::int64_t end_of_turn = nano ? 2296 : 2;
  Trainee trainee;
  trainee.model_type = "kolibri1";
  trainee.layout.table = make_table(c);
  trainee.vocab_size = c.vocab_size;
  trainee.n_experts = c.num_experts;
  for (std::size_t layer = 0; layer < c.is_sliding.size(); ++layer) {
    trainee.bias_names.push_back(layer_name(layer) + "moe.router.expert_bias");
  }
  trainee.forward = [c](const Weights& w, const Batch& batch, const Phase&, Choices& choices) {
    return forward(c, w, batch, choices);
  };
  trainee.shape_first_weights = [c](const Weights& w) { shape_first_weights(c, w); };
  trainee.layout.format = format_of;
  trainee.layout.scale_dtype = "F32";
  trainee.layout.config_json = config_json(c, end_of_turn, end_of_text).dump(1) + "\n";
  const nlohmann::ordered_json generation = {{"do_sample", true},
                                             {"eos_token_id", {end_of_turn, end_of_text}},
                                             {"pad_token_id", end_of_text},
                                             {"temperature", 1.0},
                                             {"top_k", 128},
                                             {"top_p", 0.97}};
  trainee.layout.generation_config_json = generation.dump(1) + "\n";
  return trainee;
}

}  // namespace kalibri::reference::training
