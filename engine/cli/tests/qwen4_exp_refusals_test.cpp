// Hostile checkpoints and prompts of qwen4_exp: both sides refuse them by name, with exit status 2, and leave no file.
#include <filesystem>
#include <functional>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_reader.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using fixtures::CheckpointCopy;
using nlohmann::json;

namespace {

const std::string kPrefix = "model.language_model.";
const std::string kEmbedding = kPrefix + "layers.1.ple.ple_embedding.";
const std::string kTable = kEmbedding + "ngram_embedding.";

using Apply = std::function<void(const CheckpointCopy&)>;

struct Damage {
  std::string text;  // of both sides' messages
  Apply apply;
};

Apply text_config(const std::function<void(json&)>& edit) {
  return [edit](const CheckpointCopy& copy) { copy.edit_config([&](json& c) { edit(c["text_config"]); }); };
}

Apply set_key(const std::string& key, const json& value) {
  return text_config([=](json& c) { c[key] = value; });
}

/// Renames a tensor, so that it is missing under its own name.
Apply without(const std::string& name) {
  return [name](const CheckpointCopy& copy) { copy.edit_header([&](json& h) { h["x"] = h.at(name), h.erase(name); }); };
}

Apply patch(const std::string& name, std::int64_t first, std::size_t n, unsigned char byte) {
  return [=](const CheckpointCopy& copy) {
    fixtures::patch_tensor(copy.weights(), name, first, std::vector<std::byte>(n, std::byte{byte}));
  };
}

}  // namespace

TEST_CASE("qwen4_exp checkpoints that contradict themselves are refused by name on both sides") {
  const fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
  const fixtures::TempDirectory scratch;
  fixtures::make_qwen4_exp(scratch.path() / "made", shape, {});
  const std::int64_t shard_bytes = fixtures::read_safetensors_header(scratch.path() / "made" / "model.safetensors")
                                       .at(kTable + "shard_3.weight")
                                       .n_bytes;
  const std::string expert = kPrefix + "layers.0.mlp.experts.";
  const std::vector<Damage> damages = {
      {"layer_types",
       set_key("layer_types", {"linear_attention", "full_attention", "sliding_attention", "full_attention"})},
      {"layer_types", set_key("layer_types", {"linear_attention"})},
      {"output_gate_type", set_key("output_gate_type", "tanh")},
      {"hc_count", set_key("hc_count", 1)},
      {"num_experts_per_tok", set_key("num_experts_per_tok", 13)},
      {"num_experts_per_tok", set_key("num_experts_per_tok", 0)},
      {"indexer_kv_heads", set_key("indexer_kv_heads", 2)},
      {"indexer_budget", set_key("indexer_budget", 18)},
      {"indexer_budget", set_key("indexer_budget", 0)},
      {"indexer_head_dim", set_key("indexer_head_dim", 6)},
      {"indexer_n_heads", text_config([](json& c) { c.erase("indexer_n_heads"); })},
      {"ple_embed_dim", set_key("ple_embed_dim", 62)},
      {"ple_layer_ids", set_key("ple_layer_ids", {0})},
      {"ple_layer_ids", set_key("ple_layer_ids", {5})},
      {"eos_token_id", text_config([](json& c) { c.erase("eos_token_id"); })},
      {"hidden_act", set_key("hidden_act", "gelu")},
      {"weight_block_size",
       [](const CheckpointCopy& copy) {
         copy.edit_config([](json& c) { c["quantization_config"]["weight_block_size"] = {64, 64}; });
       }},
      {"quantization_config",
       [](const CheckpointCopy& copy) { copy.edit_config([](json& c) { c.erase("quantization_config"); }); }},
      // the n-gram module's constants and table
      {"layer_multipliers", patch(kEmbedding + "layer_multipliers", 8, 1, 0)},
      {"ngram_heads_vocab_sizes", patch(kEmbedding + "ngram_heads_vocab_sizes", 0, 1, 1)},
      {"ngram_heads_offsets", patch(kEmbedding + "ngram_heads_offsets", 12, 4, 0x7F)},  // far outside the table
      {"ngram_heads_offsets", patch(kEmbedding + "ngram_heads_offsets", 8, 8, 0xFF)},   // -1
      {"layer_multipliers", set_key("seed", 1235)},
      {"ngram_embedding", without(kTable + "shard_11.weight")},
      {"ngram_embedding", without(kTable + "shard_4.weight")},
      {"ngram_embedding", without(kTable + "shard_0.weight")},
      {"weight_scale", without(kTable + "weight_scale")},
      {"scale", patch(kTable + "weight_scale", 0, 2, 0xFF)},  // NaN
      {"ngram_embedding",
       [&](const CheckpointCopy& copy) {  // a shard of one row fewer
         copy.edit_header([&](json& h) {
           h[kTable + "shard_11.weight"]["shape"] = {35, 16};
           h[kTable + "shard_11.weight"]["data_offsets"][1] =
               h[kTable + "shard_11.weight"]["data_offsets"][1].get<std::int64_t>() - 16;
           h["x"] = {
               {"dtype", "F8_E4M3"}, {"shape", {16}}, {"data_offsets", h[kTable + "shard_11.weight"]["data_offsets"]}};
           h["x"]["data_offsets"] = {h["x"]["data_offsets"][1], h["x"]["data_offsets"][1].get<std::int64_t>() + 16};
         });
       }},
      {kTable + "shard_3.weight", patch(kTable + "shard_3.weight", 0, static_cast<std::size_t>(shard_bytes), 0x7F)},
      {kTable + "shard_3.weight", patch(kTable + "shard_3.weight", 0, static_cast<std::size_t>(shard_bytes), 0xFF)},
      // experts and heads
      {"lm_head.weight", without("lm_head.weight")},
      {expert + "11.up_proj.weight", without(expert + "11.up_proj.weight")},
      {expert + "11.up_proj.weight_scale_inv", without(expert + "11.up_proj.weight_scale_inv")},
      {expert,
       [&](const CheckpointCopy& copy) {  // every expert's codes
         for (int e = 0; e < 12; ++e) patch(expert + std::to_string(e) + ".down_proj.weight", 100, 1, 0x7F)(copy);
       }},
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    const CheckpointCopy copy(scratch.path() / "made");
    damages[i].apply(copy);
    for (const test::Side side : test::kSides) {
      const fixtures::TempDirectory folder;
      const auto result = test::run_side(side, copy.directory(), {{"p", test::random_ids(64, shape.vocab_size)}},
                                         folder.path() / "out.h5");
      INFO("damage " << i << ", " << test::name(side) << ": " << result.err);
      CHECK(result.exit_status == 2);
      CHECK_THAT(result.err, ContainsSubstring(damages[i].text));
      CHECK_FALSE(std::filesystem::exists(folder.path() / "out.h5"));
    }
  }
}

TEST_CASE("qwen4_exp refuses ids outside the vocabulary and prompts that are too long, on both sides") {
  fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_tiny();
  shape.max_position_embeddings = 32;
  const fixtures::TempDirectory scratch;
  fixtures::make_qwen4_exp(scratch.path() / "made", shape, {});
  const std::vector<std::pair<std::vector<std::int64_t>, std::string>> cases = {
      {{1, 256}, "256"}, {{-1}, "-1"}, {{}, "'p'"}, {test::random_ids(33, 256), "33"}};
  for (const auto& [ids, text] : cases) {
    for (const test::Side side : test::kSides) {
      const auto result = test::run_side(side, scratch.path() / "made", {{"p", ids}}, scratch.path() / "out.h5");
      INFO(test::name(side) << ": " << result.err);
      CHECK(result.exit_status == 2);
      CHECK_THAT(result.err, ContainsSubstring(text));
    }
  }
}
