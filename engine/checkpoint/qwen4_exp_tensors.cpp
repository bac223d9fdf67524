// Names and shapes: transformers, modeling_qwen4_exp.py, the modules' own names; FP8 and table shards as released.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/checkpoint/family.hpp"
#include "engine/checkpoint/json.hpp"
#include "engine/checkpoint/ngram_hash.hpp"

namespace kalibri::checkpoint {

namespace {

constexpr const char* kEmbedding = "ple.ple_embedding.";
constexpr const char* kTable = "ple.ple_embedding.ngram_embedding.";
constexpr std::int64_t kMostShards = 1 << 20;  // a bound on the work that a tensor's name can ask for

/// 1 + the highest k of the tensors "<prefix>shard_<k>.weight", so that a gap shows as missing; 0 without any.
std::int64_t count_shards(const Checkpoint& checkpoint, const std::string& prefix) {
  std::int64_t n = 0;
  for (auto it = checkpoint.tensors().lower_bound(prefix + "shard_"); it != checkpoint.tensors().end(); ++it) {
    std::string_view name = it->first;
    if (!name.starts_with(prefix + "shard_")) break;
    name.remove_prefix(prefix.size() + 6);
    std::int64_t k = 0;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), k);
    if (failure == std::errc() && std::string_view(end, name.data() + name.size()) == ".weight" && k < kMostShards) {
      n = std::max(n, k + 1);
    }
  }
  return n;
}

/// Collects a layer's tensors under its prefix.
struct Collector {
  std::vector<ExpectedTensor>& tensors;
  std::string prefix;

  void add(const std::string& name, std::vector<std::int64_t> shape, TensorKind kind, Storage storage) const {
    tensors.push_back({prefix + name, std::move(shape), kind, storage});
  }
  void plain(const std::string& name, std::vector<std::int64_t> shape, TensorKind kind) const {
    add(name, std::move(shape), kind, Storage::plain);
  }
  void matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols, TensorKind kind) const {
    add(name, {n_rows, n_cols}, kind, Storage::matrix);
  }
  void swiglu(const std::string& name, std::int64_t width, std::int64_t hidden, TensorKind kind) const {
    matrix(name + "gate_proj.weight", width, hidden, kind);
    matrix(name + "up_proj.weight", width, hidden, kind);
    matrix(name + "down_proj.weight", hidden, width, kind);
  }
};

void add_gated_residual(const Collector& to, const Qwen4ExpConfig& c, const std::string& name, bool injects) {
  const std::int64_t width = c.residual_size();
  to.plain(name + "hc_norm.weight", {width}, TensorKind::norm);
  to.matrix(name + "input_mix_weight_down.weight", c.hc_lowrank, width, TensorKind::stream_mixer);
  to.matrix(name + "input_mix_weight_up.weight", width, c.hc_lowrank, TensorKind::stream_mixer);
  if (injects) to.matrix(name + "block_inject_weight.weight", c.hc_count, width, TensorKind::stream_mixer);
}

void add_delta_net(const Collector& to, const Qwen4ExpConfig& c) {
  const std::int64_t channels = 2 * c.delta_key_size() + c.delta_value_size();
  const std::int64_t n_heads = c.linear_num_value_heads;
  to.matrix("linear_attn.in_proj_qkv.weight", channels, c.hidden_size, TensorKind::delta_net);
  to.matrix("linear_attn.in_proj_z.weight", c.delta_value_size(), c.hidden_size, TensorKind::delta_net);
  to.matrix("linear_attn.in_proj_b.weight", n_heads, c.hidden_size, TensorKind::delta_net);
  to.matrix("linear_attn.in_proj_a.weight", n_heads, c.hidden_size, TensorKind::delta_net);
  to.plain("linear_attn.conv1d.weight", {channels, 1, c.linear_conv_kernel_dim}, TensorKind::delta_net);
  to.plain("linear_attn.dt_bias", {n_heads}, TensorKind::delta_net);
  to.plain("linear_attn.A_log", {n_heads}, TensorKind::delta_net);
  to.plain("linear_attn.norm.weight", {c.linear_value_head_dim}, TensorKind::norm);
  to.matrix("linear_attn.out_proj.weight", c.hidden_size, c.delta_value_size(), TensorKind::delta_net);
}

void add_sparse_attention(const Collector& to, const Qwen4ExpConfig& c) {
  const std::int64_t queries = c.num_attention_heads * c.head_dim;
  const std::int64_t keys = c.num_key_value_heads * c.head_dim;
  to.matrix("self_attn.q_proj.weight", 2 * queries, c.hidden_size, TensorKind::attention);
  to.matrix("self_attn.k_proj.weight", keys, c.hidden_size, TensorKind::attention);
  to.matrix("self_attn.v_proj.weight", keys, c.hidden_size, TensorKind::attention);
  to.matrix("self_attn.o_proj.weight", c.hidden_size, queries, TensorKind::attention);
  to.plain("self_attn.q_norm.weight", {c.head_dim}, TensorKind::norm);
  to.plain("self_attn.k_norm.weight", {c.head_dim}, TensorKind::norm);
  to.matrix("self_attn.indexer.index_qk_proj.weight", (c.indexer_n_heads + 1) * c.indexer_head_dim, c.hidden_size,
            TensorKind::indexer);
  to.plain("self_attn.indexer.q_layernorm.weight", {c.indexer_head_dim}, TensorKind::norm);
  to.plain("self_attn.indexer.k_layernorm.weight", {c.indexer_head_dim}, TensorKind::norm);
}

void add_ngram_layer(const Collector& to, const Qwen4ExpConfig& c, const Qwen4ExpLayout::NgramTable& table,
                     const std::vector<std::string>& table_names) {
  const std::int64_t width = c.residual_size();
  to.matrix("ple.key_proj.weight", width, c.ple_embed_dim, TensorKind::ngram_layer);
  to.matrix("ple.value_proj.weight", c.hidden_size, c.ple_embed_dim, TensorKind::ngram_layer);
  for (const char* norm : {"norm_key", "norm_query", "norm_conv"}) {
    to.plain(fmt::format("ple.{}.weight", norm), {width}, TensorKind::norm);
  }
  to.plain("ple.conv1d.weight", {width, 1, c.ple_conv_kernel_size}, TensorKind::ngram_layer);
  for (const std::string& name : table_names) {
    to.tensors.push_back({name, {c.ple_embed_dim / c.ngram_heads()}, TensorKind::ngram_table, Storage::rows});
  }
  if (table.has_scale) to.add(kTable + std::string("weight_scale"), {}, TensorKind::scale, Storage::scalar);
  if (!table.has_constants) return;
  const std::string constants = kEmbedding;
  to.add(constants + "layer_multipliers", {c.ngram_size}, TensorKind::constant, Storage::integers);
  to.add(constants + "ngram_heads_vocab_sizes", {c.ngram_heads()}, TensorKind::constant, Storage::integers);
  to.add(constants + "ngram_heads_offsets", {c.ngram_heads()}, TensorKind::constant, Storage::integers);
}

void add_experts(const Collector& to, const Qwen4ExpConfig& c, ExpertLayout layout) {
  const std::int64_t width = c.moe_intermediate_size;
  to.matrix("mlp.gate.weight", c.num_experts, c.hidden_size, TensorKind::router);
  if (layout == ExpertLayout::stacked) {
    const auto stack = [&](const char* name, std::int64_t n_rows, std::int64_t n_cols) {
      to.add(fmt::format("mlp.switch_mlp.{}_proj.weight", name), {c.num_experts, n_rows, n_cols}, TensorKind::expert,
             Storage::unscaled);
    };
    stack("gate", width, c.hidden_size);
    stack("up", width, c.hidden_size);
    stack("down", c.hidden_size, width);
  }
  if (layout == ExpertLayout::fused) {
    to.plain("mlp.experts.gate_up_proj", {c.num_experts, 2 * width, c.hidden_size}, TensorKind::expert);
    to.plain("mlp.experts.down_proj", {c.num_experts, c.hidden_size, width}, TensorKind::expert);
  }
  for (std::int64_t expert = 0; layout == ExpertLayout::single && expert < c.num_experts; ++expert) {
    to.swiglu(fmt::format("mlp.experts.{}.", expert), width, c.hidden_size, TensorKind::expert);
  }
  to.swiglu("mlp.shared_expert.", c.shared_expert_intermediate_size, c.hidden_size, TensorKind::shared_expert);
  to.matrix("mlp.shared_expert_gate.weight", 1, c.hidden_size, TensorKind::shared_expert);
}

/// The n-gram layer's number among its kind, or nothing.
std::optional<std::size_t> module_of(const Qwen4ExpConfig& c, std::int64_t layer) {
  const auto found = std::find(c.ple_layers.begin(), c.ple_layers.end(), layer);
  if (found == c.ple_layers.end()) return std::nullopt;
  return static_cast<std::size_t>(found - c.ple_layers.begin());
}

}  // namespace

std::string Qwen4ExpLayout::layer_prefix(std::int64_t layer) const {
  return fmt::format("{}layers.{}.", prefix, layer);
}

std::vector<std::string> Qwen4ExpLayout::ngram_table_names(const Qwen4ExpConfig& config, std::size_t module) const {
  const std::string table = layer_prefix(config.ple_layers.at(module)) + kTable;
  if (ngram_tables.at(module).n_shards == 0) return {table + "weight"};
  std::vector<std::string> names;  // by number: the names' own order is lexical
  for (std::int64_t k = 0; k < ngram_tables[module].n_shards; ++k) {
    names.push_back(fmt::format("{}shard_{}.weight", table, k));
  }
  return names;
}

Qwen4ExpLayout find_qwen4_exp_layout(const Checkpoint& checkpoint, const Qwen4ExpConfig& c) {
  Qwen4ExpLayout layout;
  const std::string released = "model.language_model.";
  const auto first = checkpoint.tensors().lower_bound(released);
  if (first != checkpoint.tensors().end() && first->first.starts_with(released)) layout.prefix = released;
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string mlp = layout.layer_prefix(layer) + "mlp.";
    const auto has = [&](const std::string& name) { return checkpoint.find(mlp + name) != nullptr; };
    const auto has_stack = [&](const char* name) { return has(fmt::format("switch_mlp.{}_proj.weight", name)); };
    if (has("experts.gate_up_proj") || has("experts.down_proj")) {
      layout.experts.push_back(ExpertLayout::fused);
    } else if (has_stack("gate") || has_stack("up") || has_stack("down")) {
      layout.experts.push_back(ExpertLayout::stacked);
    } else {
      layout.experts.push_back(ExpertLayout::single);
    }
  }
  for (std::size_t module = 0; module < c.ple_layers.size(); ++module) {
    const std::string layer = layout.layer_prefix(c.ple_layers[module]);
    Qwen4ExpLayout::NgramTable& table = layout.ngram_tables.emplace_back();
    table.n_shards = count_shards(checkpoint, layer + kTable);
    const TensorView* part = nullptr;
    for (const std::string& name : layout.ngram_table_names(c, module)) {
      if (part == nullptr) part = checkpoint.find(name);
    }
    table.has_scale = part != nullptr && part->dtype == Dtype::f8_e4m3;
    for (const char* name : {"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}) {
      table.has_constants = table.has_constants || checkpoint.find(layer + kEmbedding + name) != nullptr;
    }
  }
  return layout;
}

std::vector<ExpectedTensor> qwen4_exp_tensors(const Qwen4ExpConfig& c, const Qwen4ExpLayout& layout) {
  std::vector<ExpectedTensor> tensors;
  const Collector text{tensors, layout.prefix};
  text.matrix("embed_tokens.weight", c.vocab_size, c.hidden_size, TensorKind::embedding);
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const Collector to{tensors, layout.layer_prefix(layer)};
    if (const auto module = module_of(c, layer)) {
      add_ngram_layer(to, c, layout.ngram_tables.at(*module), layout.ngram_table_names(c, *module));
    }
    add_gated_residual(to, c, "attn_hyper_connection.", /*injects=*/true);
    if (c.layer_is_sparse[static_cast<std::size_t>(layer)]) {
      add_sparse_attention(to, c);
    } else {
      add_delta_net(to, c);
    }
    add_gated_residual(to, c, "mlp_hyper_connection.", /*injects=*/true);
    add_experts(to, c, layout.experts.at(static_cast<std::size_t>(layer)));
  }
  add_gated_residual(text, c, "hyper_connection_mixer.", /*injects=*/false);
  if (!c.tie_word_embeddings) {
    Collector{tensors, ""}.matrix("lm_head.weight", c.vocab_size, c.hidden_size, TensorKind::head);
  }
  return tensors;
}

std::vector<Problem> qwen4_exp_problems(const Checkpoint& checkpoint, const Qwen4ExpConfig& c,
                                        const Qwen4ExpLayout& layout) {
  std::vector<Problem> problems;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (c.has_block_scales || !name.starts_with(layout.prefix) || tensor->dtype != Dtype::f8_e4m3 ||
        checkpoint.find(scale_name(name)) == nullptr) {
      continue;
    }
    problems.push_back({tensor->file->path().filename().string(), printable(name),
                        "dtype F8_E4M3, but config.json has no quantization_config with weight_block_size"});
  }
  for (std::size_t module = 0; module < c.ple_layers.size(); ++module) {
    const NgramHash hash = make_ngram_hash(c, static_cast<std::int64_t>(module));
    const std::string layer = layout.layer_prefix(c.ple_layers[module]);
    const auto compare = [&](const char* constant, const std::vector<std::int64_t>& computed) {
      const std::string name = layer + kEmbedding + constant;
      const auto n = static_cast<std::int64_t>(computed.size());
      if (checkpoint.integers_problem(name, n) || checkpoint.integers(name, n) == computed) return;
      problems.push_back({checkpoint.find(name)->file->path().filename().string(), name,
                          "differs from what config.json's seed, vocab_size and n-gram keys give; the checkpoint and "
                          "its config do not belong together"});
    };
    compare("layer_multipliers", hash.multipliers);
    compare("ngram_heads_vocab_sizes", hash.sizes);
    compare("ngram_heads_offsets", hash.offsets);

    std::int64_t n_rows = 0;
    bool all_there = true;
    for (const std::string& name : layout.ngram_table_names(c, module)) {
      const TensorView* part = checkpoint.find(name);
      all_there = all_there && part != nullptr && part->shape.size() == 2;
      if (all_there) n_rows += part->shape[0];
    }
    if (all_there && n_rows != hash.n_rows) {
      problems.push_back({"", layer + kTable + "*",
                          fmt::format("{} rows in all, expected {} (config.json ngram_vocab_size_base); a shard is "
                                      "missing or of another model",
                                      n_rows, hash.n_rows)});
    }
  }
  return problems;
}

}  // namespace kalibri::checkpoint
