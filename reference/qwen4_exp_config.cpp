// Source: transformers, configuration_qwen4_exp.py.
#include "reference/qwen4_exp_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "reference/affine_config.hpp"
#include "reference/config_reader.hpp"

namespace kalibri::reference {
namespace {

constexpr std::array<std::string_view, 4> kSparseTypes = {"full_attention", "qwen_sparse_attention",
                                                          "deepseek_sparse_attention", "hybrid_indexed"};

std::vector<bool> read_layer_types(const ConfigReader& config, std::int64_t n_layers) {
  std::vector<bool> is_sparse;
  if (!config.has("layer_types")) {
    const std::int64_t interval = config.has("full_attention_interval") ? config.size("full_attention_interval") : 4;
    for (std::int64_t layer = 0; layer < n_layers; ++layer) is_sparse.push_back((layer + 1) % interval == 0);
    return is_sparse;
  }
  for (const std::string& type : config.texts("layer_types")) {
    const bool sparse = std::ranges::find(kSparseTypes, type) != kSparseTypes.end();
    if (!sparse && type != "linear_attention") config.refuse("layer_types", fmt::format("'{}' is unknown", type));
    is_sparse.push_back(sparse);
  }
  if (static_cast<std::int64_t>(is_sparse.size()) != n_layers) {
    config.refuse("layer_types", fmt::format("{} entries, but num_hidden_layers is {}", is_sparse.size(), n_layers));
  }
  return is_sparse;
}

/// `key` must be a multiple of `other`'s value.
void check_multiple(const ConfigReader& config, const char* key, std::int64_t value, const char* other,
                    std::int64_t divisor) {
  if (value % divisor != 0) config.refuse(key, fmt::format("no multiple of {}, which is {}", other, divisor));
}

void read_attention(const ConfigReader& config, Qwen4ExpConfig& values) {
  values.num_attention_heads = config.size("num_attention_heads");
  values.num_key_value_heads = config.size("num_key_value_heads");
  values.head_dim = config.size("head_dim");
  values.indexer_n_heads = config.size("indexer_n_heads");
  values.indexer_head_dim = config.size("indexer_head_dim");
  values.indexer_budget = config.size("indexer_budget");
  values.indexer_compress_ratio = config.size("indexer_compress_ratio");
  config.expect("indexer_kv_heads", 1);
  check_multiple(config, "num_attention_heads", values.num_attention_heads, "num_key_value_heads",
                 values.num_key_value_heads);
  check_multiple(config, "indexer_budget", values.indexer_budget, "indexer_compress_ratio",
                 values.indexer_compress_ratio);

  if (config.has("rope_scaling")) config.refuse("rope_scaling", "no scaling of positions is implemented");
  const ConfigReader rope = config.object("rope_parameters");
  if (rope.has("rope_type")) rope.expect("rope_type", "default");
  values.rope_theta = rope.positive("rope_theta");
  const double factor = rope.positive("partial_rotary_factor");
  if (factor > 1.0) rope.refuse("partial_rotary_factor", "expected at most 1");
  values.rotary_dim = static_cast<std::int64_t>(static_cast<double>(values.head_dim) * factor);
  if (values.rotary_dim < 2 || values.rotary_dim % 2 != 0) {
    rope.refuse("partial_rotary_factor", fmt::format("{} of head_dim {} rotate: an even number from 2 is needed",
                                                     values.rotary_dim, values.head_dim));
  }
  if (values.rotary_dim > values.indexer_head_dim) {
    config.refuse("indexer_head_dim", fmt::format("less than the {} components that rotate", values.rotary_dim));
  }
}

void read_delta_net(const ConfigReader& config, Qwen4ExpConfig& values) {
  values.linear_num_key_heads = config.size("linear_num_key_heads");
  values.linear_num_value_heads = config.size("linear_num_value_heads");
  values.linear_key_head_dim = config.size("linear_key_head_dim");
  values.linear_value_head_dim = config.size("linear_value_head_dim");
  values.linear_conv_kernel_dim = config.size("linear_conv_kernel_dim");
  check_multiple(config, "linear_num_value_heads", values.linear_num_value_heads, "linear_num_key_heads",
                 values.linear_num_key_heads);
  const std::string gate = config.has("output_gate_type") ? config.text("output_gate_type") : "silu";
  if (gate != "sigmoid" && gate != "silu") config.refuse("output_gate_type", "only sigmoid and silu are implemented");
  values.output_gate_is_sigmoid = gate == "sigmoid";
}

void read_experts(const ConfigReader& config, Qwen4ExpConfig& values) {
  values.num_experts = config.size("num_experts");
  values.num_experts_per_tok = config.size("num_experts_per_tok");
  values.moe_intermediate_size = config.size("moe_intermediate_size");
  values.shared_expert_intermediate_size = config.size("shared_expert_intermediate_size");
  values.norm_topk_prob = !config.has("norm_topk_prob") || config.flag("norm_topk_prob");
  if (values.num_experts_per_tok > values.num_experts) {
    config.refuse("num_experts_per_tok", fmt::format("more than num_experts {}", values.num_experts));
  }
}

void read_ple(const ConfigReader& config, Qwen4ExpConfig& values) {
  std::set<std::int64_t> layers;
  for (const std::int64_t id : config.counts("ple_layer_ids")) {
    if (id < 1 || id > values.num_hidden_layers) {
      config.refuse("ple_layer_ids", fmt::format("{} is not from 1 to num_hidden_layers {}; they count from one", id,
                                                 values.num_hidden_layers));
    }
    layers.insert(id - 1);
  }
  values.ple_layers.assign(layers.begin(), layers.end());
  if (layers.empty()) return;
  values.ple_embed_dim = config.has("ple_embed_dim") ? config.size("ple_embed_dim") : values.hidden_size;
  values.ple_conv_kernel_size = config.size("ple_conv_kernel_size");
  values.ngram_size = config.size("ngram_size");
  if (values.ngram_size < 2) config.refuse("ngram_size", "expected at least 2");
  values.heads_per_ngram = config.size("heads_per_ngram");
  values.ngram_vocab_size_base = config.size("ngram_vocab_size_base");
  values.make_ngram_vocab_size_divisible_by = config.size("make_ngram_vocab_size_divisible_by");
  values.seed = config.has("seed") ? config.count("seed") : 1234;
  if (values.ple_embed_dim % values.n_ngram_heads() != 0) {
    config.refuse("heads_per_ngram",
                  fmt::format("{} heads do not divide ple_embed_dim {}", values.n_ngram_heads(), values.ple_embed_dim));
  }
  const std::vector<std::int64_t> eos = config.counts("eos_token_id");
  if (eos.empty() || eos.front() >= values.vocab_size) {
    config.refuse("eos_token_id", fmt::format("expected a token id below vocab_size {}", values.vocab_size));
  }
  values.eos_token_id = eos.front();
}

/// What may stand beside text_config or, in a flat file, among its keys.
void read_outer(const ConfigReader& root, const ConfigReader& text, bool is_mlx, Qwen4ExpConfig& values) {
  const ConfigReader& tie = root.has("tie_word_embeddings") ? root : text;
  values.tie_word_embeddings = tie.has("tie_word_embeddings") && tie.flag("tie_word_embeddings");
  const ConfigReader& outer = root.has("quantization_config") ? root : text;
  if (is_mlx || !outer.has("quantization_config")) return;
  const ConfigReader quantisation = outer.object("quantization_config");
  quantisation.expect("quant_method", "fp8");
  if (!quantisation.has("weight_block_size")) return;
  quantisation.expect("weight_block_size", {128, 128});
  values.has_block_scales = true;
}

}  // namespace

Qwen4ExpConfig read_qwen4_exp_config(const Checkpoint& checkpoint) {
  const ConfigReader root(checkpoint);
  const ConfigReader config = root.has("text_config") ? root.object("text_config") : root;
  if (root.has("text_config") && config.has("model_type")) config.expect("model_type", "qwen4_exp_text");
  config.expect("hidden_act", "silu");
  if (config.has("attention_bias")) config.expect("attention_bias", false);
  Qwen4ExpConfig values;
  values.vocab_size = config.size("vocab_size");
  values.hidden_size = config.size("hidden_size");
  values.num_hidden_layers = config.size("num_hidden_layers");
  values.max_position_embeddings = config.size("max_position_embeddings");
  values.rms_norm_eps = config.positive("rms_norm_eps");
  values.is_sparse = read_layer_types(config, values.num_hidden_layers);
  values.hc_count = config.size("hc_count");
  if (values.hc_count < 2) config.refuse("hc_count", "expected at least 2");
  values.hc_lowrank = config.size("hc_lowrank");
  read_attention(config, values);
  read_delta_net(config, values);
  read_experts(config, values);
  read_ple(config, values);
  read_outer(root, config, has_affine_block(checkpoint), values);
  return values;
}

}  // namespace kalibri::reference
