#include "engine/checkpoint/qwen4_exp_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "engine/checkpoint/config_reader.hpp"

namespace kalibri::checkpoint {

namespace {

// Sizes and positions are used as 32-bit integers, so the product of two fits 64 bits.
constexpr std::int64_t kMaxSize = INT32_MAX;
// Experts of all layers; the released model has 24,576. A bound on the work that a wrong file can ask for.
constexpr std::int64_t kMaxExpertsInAll = 1 << 20;
// Taps of a short convolution; the released model has 4. The kernels hold that many rows.
constexpr std::int64_t kMaxConvTaps = 16;

/// A key with a default that the specification names; what was defaulted is listed.
class Defaults {
 public:
  Defaults(ConfigReader& reader, std::vector<std::string>& used) : reader_(reader), used_(used) {}

  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t otherwise) {
    if (reader_.has(key)) return reader_.integer(key, least, kMaxSize);
    note(key, fmt::format("{}", otherwise));
    return otherwise;
  }
  void note(std::string_view key, std::string_view value) {
    reader_.ignore({key});
    used_.push_back(fmt::format("{} = {}", key, value));
  }

 private:
  ConfigReader& reader_;
  std::vector<std::string>& used_;
};

bool read_bool(ConfigReader& reader, std::string_view key) {
  const nlohmann::json& value = reader.value(key);
  if (!value.is_boolean()) reader.fail(key, fmt::format("{}, expected true or false", value.dump()));
  return value.get<bool>();
}

/// layer_types, or every full_attention_interval-th layer from full_attention_interval - 1 on.
std::vector<bool> read_layer_types(ConfigReader& reader, Defaults& defaults, std::int64_t n_layers) {
  std::vector<bool> is_sparse;
  if (!reader.has("layer_types")) {
    const std::int64_t interval = defaults.integer("full_attention_interval", 1, 4);
    defaults.note("layer_types", fmt::format("sparse attention in every {}. layer", interval));
    for (std::int64_t layer = 0; layer < n_layers; ++layer) is_sparse.push_back((layer + 1) % interval == 0);
    return is_sparse;
  }
  reader.ignore({"full_attention_interval"});
  static const std::set<std::string, std::less<>> sparse = {"full_attention", "qwen_sparse_attention",
                                                            "deepseek_sparse_attention", "hybrid_indexed"};
  for (const std::string& type : reader.strings("layer_types")) {
    if (type != "linear_attention" && !sparse.contains(type)) {
      reader.fail("layer_types",
                  fmt::format("'{}' (layer {}), expected linear_attention, full_attention or another name "
                              "of sparse attention",
                              type, is_sparse.size()));
    }
    is_sparse.push_back(sparse.contains(type));
  }
  if (static_cast<std::int64_t>(is_sparse.size()) != n_layers) {
    reader.fail("layer_types", fmt::format("{} entries, expected {} (num_hidden_layers)", is_sparse.size(), n_layers));
  }
  return is_sparse;
}

void read_rope(ConfigReader& reader, const std::string& where, Qwen4ExpConfig& c) {
  ConfigReader rope(reader.value("rope_parameters"), where, "rope_parameters.");
  rope.must_be("rope_type", "default", "scaled rotary embeddings are not implemented");
  c.rope_theta = rope.number("rope_theta");
  if (!(c.rope_theta >= 1)) rope.fail("rope_theta", "below 1");
  const double factor = rope.number("partial_rotary_factor");
  if (!(factor > 0 && factor <= 1)) rope.fail("partial_rotary_factor", "not above 0 and at most 1");
  c.rotary_dim = static_cast<std::int64_t>(static_cast<double>(c.head_dim) * factor);
  if (c.rotary_dim < 2 || c.rotary_dim % 2 != 0) {
    rope.fail("partial_rotary_factor",
              fmt::format("gives {} components that rotate; rotary embeddings turn pairs", c.rotary_dim));
  }
  rope.must_be("mrope_interleaved", true, "axes in sections one after another are not implemented");
  const nlohmann::json& section = rope.value("mrope_section");
  if (!section.is_array() || section.size() != 3) rope.fail("mrope_section", "expected three numbers (axes t, h, w)");
  std::int64_t n_frequencies = 0;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (!section[axis].is_number_unsigned() || section[axis].get<std::uint64_t>() > kMaxSize) {
      rope.fail("mrope_section", "expected three numbers (axes t, h, w)");
    }
    c.mrope_section[axis] = section[axis].get<std::int64_t>();
    n_frequencies += c.mrope_section[axis];
  }
  if (n_frequencies != c.rotary_dim / 2) {
    rope.fail("mrope_section", fmt::format("sums to {}, expected {} (half of the {} components that rotate)",
                                           n_frequencies, c.rotary_dim / 2, c.rotary_dim));
  }
  for (const std::string& key : rope.unknown_keys()) c.unknown_keys.push_back(key);
}

/// eos_token_id: a number, or a list of which the first one counts.
std::int64_t read_eos(ConfigReader& reader, std::int64_t vocab_size) {
  const nlohmann::json& value = reader.value("eos_token_id");
  const nlohmann::json& first = value.is_array() && !value.empty() ? value.front() : value;
  if (!first.is_number_unsigned() || first.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_size)) {
    reader.fail("eos_token_id", fmt::format("{}, expected a token id below vocab_size {} (n-gram embeddings need it)",
                                            value.dump(), vocab_size));
  }
  return first.get<std::int64_t>();
}

void read_ngram(ConfigReader& reader, Defaults& defaults, Qwen4ExpConfig& c) {
  reader.ignore({"split_ngram_parts", "ple_embedding_dtype"});  // the shards and dtypes that are there decide
  if (!reader.has("ple_layer_ids") || reader.value("ple_layer_ids").empty()) {
    reader.ignore({"ple_layer_ids", "ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram",
                   "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by", "seed", "eos_token_id"});
    return;
  }
  const nlohmann::json& ids = reader.value("ple_layer_ids");
  std::set<std::int64_t> layers;
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() < 1 ||
        id.get<std::uint64_t>() > static_cast<std::uint64_t>(c.num_hidden_layers)) {
      reader.fail("ple_layer_ids", fmt::format("{}, expected layers from 1 to {} (they count from one)", ids.dump(),
                                               c.num_hidden_layers));
    }
    layers.insert(id.get<std::int64_t>() - 1);
  }
  c.ple_layers.assign(layers.begin(), layers.end());
  c.ple_embed_dim = defaults.integer("ple_embed_dim", 1, c.hidden_size);
  c.ple_conv_kernel_size = reader.integer("ple_conv_kernel_size", 1, kMaxConvTaps);
  c.ngram_size = reader.integer("ngram_size", 2, 64);
  c.heads_per_ngram = reader.integer("heads_per_ngram", 1, 4096);
  c.ngram_vocab_size_base = reader.integer("ngram_vocab_size_base", 1, 1 << 30);
  c.make_ngram_vocab_size_divisible_by = reader.integer("make_ngram_vocab_size_divisible_by", 1, 1 << 20);
  c.seed = defaults.integer("seed", 0, 1234);
  c.eos_token_id = read_eos(reader, c.vocab_size);
  if (c.ple_embed_dim % c.ngram_heads() != 0) {
    reader.fail("ple_embed_dim",
                fmt::format("{} is no multiple of the {} n-gram heads", c.ple_embed_dim, c.ngram_heads()));
  }
}

void read_quantization(const nlohmann::json& config, const std::string& where, Qwen4ExpConfig& c) {
  // With `quantization` beside it the block is MLX's, the same again: the checkpoint has read it.
  if (config.contains("quantization") && !config["quantization"].is_null()) return;
  if (!config.contains("quantization_config") || config["quantization_config"].is_null()) return;
  ConfigReader nested(config["quantization_config"], where, "quantization_config.");
  nested.must_be("quant_method", "fp8", "no other stored format is read in this layout");
  c.has_block_scales = nested.has("weight_block_size");  // without it FP8 matrices are refused when they are met
  if (c.has_block_scales)
    nested.must_be("weight_block_size", {128, 128}, "the one size of FP8 blocks that is implemented");
  nested.ignore({"weight_block_size"});
  if (nested.has("activation_scheme"))
    nested.must_be("activation_scheme", "dynamic", "static activation scales are not read");
  nested.ignore({"activation_scheme", "modules_to_not_convert", "ignored_layers"});
  for (const std::string& key : nested.unknown_keys()) c.unknown_keys.push_back(key);
}

void require_divides(const ConfigReader& reader, std::string_view key, std::int64_t divisor, std::string_view of,
                     std::int64_t n) {
  if (n % divisor != 0) reader.fail(key, fmt::format("{} does not divide {} {}", divisor, of, n));
}

void validate(const Qwen4ExpConfig& c, const ConfigReader& reader) {
  require_divides(reader, "num_key_value_heads", c.num_key_value_heads, "num_attention_heads", c.num_attention_heads);
  require_divides(reader, "linear_num_key_heads", c.linear_num_key_heads, "linear_num_value_heads",
                  c.linear_num_value_heads);
  require_divides(reader, "indexer_compress_ratio", c.indexer_compress_ratio, "indexer_budget", c.indexer_budget);
  if (c.rotary_dim > c.indexer_head_dim) {
    reader.fail("indexer_head_dim",
                fmt::format("{}, fewer than the {} components that rotate", c.indexer_head_dim, c.rotary_dim));
  }
  if (c.num_hidden_layers * c.num_experts > kMaxExpertsInAll) {
    reader.fail("num_experts", fmt::format("{} in each of {} layers are more than {} in all", c.num_experts,
                                           c.num_hidden_layers, kMaxExpertsInAll));
  }
  const std::int64_t width = c.residual_size();
  const std::array<std::array<std::int64_t, 3>, 6> largest = {{
      {c.num_hidden_layers * c.num_experts, 3 * c.moe_intermediate_size, c.hidden_size},
      {c.num_hidden_layers, 2 * (2 * c.hc_lowrank + c.hc_count), width},
      {c.num_hidden_layers, 4 * c.num_attention_heads * c.head_dim, c.hidden_size},
      {c.num_hidden_layers, 2 * c.delta_key_size() + 3 * c.delta_value_size(), c.hidden_size},
      {2, c.vocab_size, c.hidden_size},
      {c.num_hidden_layers, width + c.hidden_size, std::max<std::int64_t>(1, c.ple_embed_dim)},
  }};
  std::int64_t n_bytes = 0;
  for (const auto& [count, rows, columns] : largest) {
    std::int64_t part = 0;
    if (width > kMaxSize || __builtin_mul_overflow(count * static_cast<std::int64_t>(sizeof(float)), rows, &part) ||
        __builtin_mul_overflow(part, columns, &part) || __builtin_add_overflow(n_bytes, part, &n_bytes)) {
      reader.fail("hidden_size", "the sizes of this model overflow 64 bits");
    }
  }
}

}  // namespace

Qwen4ExpConfig Qwen4ExpConfig::from_json(const nlohmann::json& config, const std::string& where) {
  const bool nested = config.is_object() && config.contains("text_config");
  ConfigReader reader(nested ? config["text_config"] : config, where, nested ? "text_config." : "");
  Qwen4ExpConfig c;
  Defaults defaults(reader, c.defaults_used);
  const auto size = [&](std::string_view key) { return reader.integer(key, 1, kMaxSize); };
  if (nested && reader.has("model_type")) {
    reader.must_be("model_type", "qwen4_exp_text", "the text model of this family");
  }
  reader.ignore({"model_type"});
  c.vocab_size = size("vocab_size");
  c.hidden_size = size("hidden_size");
  c.num_hidden_layers = size("num_hidden_layers");
  c.layer_is_sparse = read_layer_types(reader, defaults, c.num_hidden_layers);
  c.num_attention_heads = size("num_attention_heads");
  c.num_key_value_heads = size("num_key_value_heads");
  c.head_dim = size("head_dim");
  read_rope(reader, where, c);
  c.max_position_embeddings = size("max_position_embeddings");
  c.rms_norm_eps = reader.number("rms_norm_eps");
  if (!(static_cast<float>(c.rms_norm_eps) > 0 && c.rms_norm_eps < 1)) {
    reader.fail("rms_norm_eps", "not between 0 and 1 (as float32)");
  }
  reader.must_be("hidden_act", "silu", "the activation of this family");
  reader.must_be("attention_bias", false, "attention biases are not implemented");

  c.linear_num_key_heads = size("linear_num_key_heads");
  c.linear_num_value_heads = size("linear_num_value_heads");
  c.linear_key_head_dim = size("linear_key_head_dim");
  c.linear_value_head_dim = size("linear_value_head_dim");
  c.linear_conv_kernel_dim = reader.integer("linear_conv_kernel_dim", 1, kMaxConvTaps);
  if (!reader.has("output_gate_type")) {
    defaults.note("output_gate_type", "silu (hidden_act)");
  } else {
    const nlohmann::json& gate = reader.value("output_gate_type");
    if (gate != "sigmoid" && gate != "silu")
      reader.fail("output_gate_type", fmt::format("{}, expected sigmoid or silu", gate.dump()));
    c.output_gate = gate == "sigmoid" ? OutputGate::sigmoid : OutputGate::silu;
  }

  c.hc_count = reader.integer("hc_count", 2, 1024);
  c.hc_lowrank = size("hc_lowrank");
  c.indexer_n_heads = size("indexer_n_heads");
  reader.integer("indexer_kv_heads", 1, 1);  // one index key a token
  c.indexer_head_dim = size("indexer_head_dim");
  c.indexer_budget = size("indexer_budget");
  c.indexer_compress_ratio = size("indexer_compress_ratio");

  c.num_experts = size("num_experts");
  c.num_experts_per_tok = reader.integer("num_experts_per_tok", 1, c.num_experts);
  c.moe_intermediate_size = size("moe_intermediate_size");
  c.shared_expert_intermediate_size = size("shared_expert_intermediate_size");
  if (reader.has("norm_topk_prob")) {
    c.norm_topk_prob = read_bool(reader, "norm_topk_prob");
  } else {
    defaults.note("norm_topk_prob", "true");
  }
  read_ngram(reader, defaults, c);
  ConfigReader top(config, where);
  if (top.has("tie_word_embeddings")) {
    c.tie_word_embeddings = read_bool(top, "tie_word_embeddings");
  } else if (nested && reader.has("tie_word_embeddings")) {
    c.tie_word_embeddings = read_bool(reader, "tie_word_embeddings");
  } else {
    c.defaults_used.emplace_back("tie_word_embeddings = false");
  }
  read_quantization(config, where, c);
  validate(c, reader);

  reader.ignore({"architectures", "attention_dropout", "bos_token_id", "dtype", "initializer_range",
                 "mtp_num_hidden_layers", "output_router_logits", "pad_token_id", "quantization", "quantization_config",
                 "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache"});
  for (const std::string& key : reader.unknown_keys()) c.unknown_keys.push_back(key);
  if (nested) {
    top.ignore({"architectures", "model_type", "text_config", "vision_config", "tie_word_embeddings", "quantization",
                "quantization_config", "image_token_id", "video_token_id", "vision_start_token_id",
                "vision_end_token_id", "dtype", "torch_dtype", "transformers_version"});
    for (const std::string& key : top.unknown_keys()) c.unknown_keys.push_back(key);
  }
  return c;
}

}  // namespace kalibri::checkpoint
