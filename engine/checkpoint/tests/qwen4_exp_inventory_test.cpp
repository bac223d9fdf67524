// qwen4_exp's tensors against the released model's published sums, and against golden checkpoints, whole and with one
// thing wrong, in the released and in the fused layout.
#include <algorithm>
#include <string>

#include "engine/base/error.hpp"
#include "engine/checkpoint/family.hpp"
#include "engine/checkpoint/tests/changed.hpp"

namespace kalibri::checkpoint {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::StoredTensor;

constexpr const char* kFused = "qwen4-exp-t1";
constexpr const char* kReleased = "qwen4-exp-t1-fp8";
const std::string kText = "model.language_model.";
const std::string kTable = kText + "layers.1.ple.ple_embedding.ngram_embedding.";

/// The released model's text configuration; what does not shape a tensor is left out.
Qwen4ExpConfig released_config() {
  Qwen4ExpConfig c;
  c.vocab_size = 248320;
  c.hidden_size = 2560;
  c.num_hidden_layers = 48;
  for (int layer = 0; layer < 48; ++layer) c.layer_is_sparse.push_back(layer % 4 == 3);
  c.num_attention_heads = 24;
  c.num_key_value_heads = 2;
  c.head_dim = 256;
  c.linear_num_key_heads = 16;
  c.linear_num_value_heads = 48;
  c.linear_key_head_dim = 128;
  c.linear_value_head_dim = 128;
  c.linear_conv_kernel_dim = 4;
  c.hc_count = 4;
  c.hc_lowrank = 320;
  c.indexer_n_heads = 4;
  c.indexer_head_dim = 128;
  c.num_experts = 512;
  c.moe_intermediate_size = 640;
  c.shared_expert_intermediate_size = 640;
  c.ple_layers = {1};
  c.ple_embed_dim = 2560;
  c.ple_conv_kernel_size = 4;
  c.ngram_size = 3;
  c.heads_per_ngram = 8;
  return c;
}

std::size_t n_problems_with(const Inventory& inventory, const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(inventory.problems.begin(), inventory.problems.end(),
                    [&](const auto& p) { return (p.tensor + ": " + p.text).find(text) != std::string::npos; }));
}

/// The one problem, as "tensor: text".
std::string only_problem(const Inventory& inventory) {
  REQUIRE(inventory.problems.size() == 1);
  return inventory.problems[0].tensor + ": " + inventory.problems[0].text;
}

TEST_CASE("the released qwen4_exp's tensors add up to its published sizes") {
  Qwen4ExpLayout layout;
  layout.prefix = kText;
  layout.experts.assign(48, ExpertLayout::single);
  layout.ngram_tables = {{.n_shards = 128, .has_scale = true, .has_constants = true}};
  std::map<TensorKind, std::int64_t> n_parameters;
  std::int64_t n_dense = 0;
  std::int64_t n_table_parts = 0;
  for (const ExpectedTensor& tensor : qwen4_exp_tensors(released_config(), layout)) {
    if (tensor.kind == TensorKind::constant || tensor.kind == TensorKind::scale) continue;
    if (tensor.kind == TensorKind::ngram_table) {
      CHECK(tensor.shape == std::vector<std::int64_t>{160});
      ++n_table_parts;
      continue;
    }
    std::int64_t n = 1;
    for (const std::int64_t size : tensor.shape) n *= size;
    n_parameters[tensor.kind] += n;
    if (tensor.kind != TensorKind::expert) n_dense += n;
  }
  CHECK(n_table_parts == 128);
  CHECK(n_parameters[TensorKind::expert] == std::int64_t{48} * 512 * 3 * 640 * 2560);  // 120.8 GB in FP8
  CHECK((n_dense + 5'000'000) / 10'000'000 == 495);                                    // 4.95e9: 9.9 GB in BF16
}

TEST_CASE("the golden checkpoints of qwen4_exp are whole, in either layout") {
  for (const char* set : {kFused, kReleased, "qwen4-exp-t2"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory) KALIBRI_SKIP(std::string("golden set missing: ") + set);
    INFO(set);
    const Checkpoint checkpoint = Checkpoint::open(*directory);
    const Inventory inventory = take_inventory(checkpoint, true);
    for (const Problem& problem : inventory.problems) CHECK(problem.tensor + ": " + problem.text == "");
    CHECK(inventory.unexpected.empty());
    CHECK(inventory.notes.back() == "not part of the checkpoint: golden.safetensors");
    CHECK(inventory.model_type == "qwen4_exp");
    std::int64_t n_tensors = 0;
    for (const auto& [kind, sum] : inventory.kinds) n_tensors += sum.n_tensors;
    CHECK(n_tensors == static_cast<std::int64_t>(checkpoint.tensors().size()));
    CHECK(inventory.kinds.contains(TensorKind::scale) == (set == std::string(kReleased)));
  }
}

TEST_CASE("the two layouts of one qwen4_exp model hold the same number of parameters") {
  REQUIRE_GOLDEN(fused, kFused);
  REQUIRE_GOLDEN(released, kReleased);
  CHECK(fused.take().n_parameters() == released.take().n_parameters());
}

TEST_CASE("a tensor of qwen4_exp that is missing or of another shape is a problem by its name") {
  REQUIRE_GOLDEN(changed, kReleased);
  SECTION("missing") {
    changed.tensors.erase(kText + "layers.3.self_attn.indexer.q_layernorm.weight");
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring("q_layernorm.weight: missing, expected [16]"));
  }
  SECTION("an expert of another width") {
    changed.tensors.at(kText + "layers.0.mlp.experts.7.up_proj.weight").shape = {160, 64};
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring("shape [160, 64], expected [64, 160]"));
  }
  SECTION("a scale of the wrong grid") {
    changed.tensors.at(kText + "layers.0.mlp.experts.7.up_proj.weight_scale_inv").shape = {2, 1};
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring("shape [2, 1], expected [1, 2]"));
  }
  SECTION("no embedding at all") {
    changed.tensors.erase(kText + "embed_tokens.weight");
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring(kText + "embed_tokens.weight: missing"));
  }
  SECTION("the fused experts of another number") {
    REQUIRE_GOLDEN(fused, kFused);
    fused.config["num_experts"] = 7;
    const Inventory inventory = fused.take();
    CHECK(inventory.problems.size() == 4 * 3);  // router, gate_up_proj, down_proj
    CHECK(n_problems_with(inventory, "experts.gate_up_proj: shape [8, 128, 160], expected [7, 128, 160]") == 4);
  }
}

TEST_CASE("a damaged n-gram table is a problem by its name") {
  REQUIRE_GOLDEN(changed, kReleased);
  SECTION("a shard in the middle is missing") {
    changed.tensors.erase(kTable + "shard_2.weight");
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring("shard_2.weight: missing, expected [rows, 16]"));
  }
  SECTION("the last shard is missing") {
    changed.tensors.erase(kTable + "shard_3.weight");
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring("1440 rows in all, expected 1920"));
  }
  SECTION("rows of another size") {
    changed.tensors.at(kTable + "shard_0.weight").shape = {960, 8};
    const Inventory inventory = changed.take();
    CHECK(n_problems_with(inventory, "shard_0.weight: shape [960, 8], expected [rows, 16]") == 1);
  }
  SECTION("no scale") {
    changed.tensors.erase(kTable + "weight_scale");
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring("weight_scale: missing, expected one number"));
  }
  SECTION("a constant that is not config.json's") {
    changed.tensors.at(kText + "layers.1.ple.ple_embedding.layer_multipliers").bytes[0] ^= std::byte{2};
    CHECK_THAT(only_problem(changed.take()), ContainsSubstring("layer_multipliers: differs from what config.json"));
  }
  SECTION("a NaN code in a row, when values are looked at") {
    changed.tensors.at(kTable + "shard_1.weight").bytes[16 * 5 + 3] = std::byte{0x7f};
    CHECK(changed.take(false).problems.empty());
    CHECK_THAT(only_problem(changed.take(true)), ContainsSubstring("shard_1.weight: NaN or infinity at (5, 3)"));
  }
}

TEST_CASE("FP8 blocks of qwen4_exp whose size config.json does not give are a problem") {
  REQUIRE_GOLDEN(changed, kReleased);
  changed.config["quantization_config"].erase("weight_block_size");
  const Inventory inventory = changed.take();
  CHECK(n_problems_with(inventory, "no quantization_config with weight_block_size") == 4 * 8 * 3);
  changed.config.erase("quantization_config");
  CHECK(changed.take().problems.size() == inventory.problems.size());
}

TEST_CASE("the draft layer and the vision tower are known and left alone, everything else is listed") {
  REQUIRE_GOLDEN(changed, kReleased);
  const StoredTensor small{"F32", {2, 2}, std::vector<std::byte>(16)};
  changed.tensors["mtp.layers.0.mlp.gate.weight"] = small;
  changed.tensors["mtp.norm.weight"] = small;
  changed.tensors["model.visual.merger.norm.weight"] = small;
  changed.tensors["model.visualisation.weight"] = small;
  changed.tensors[kText + "norm.weight"] = small;
  const Inventory inventory = changed.take();
  CHECK(inventory.problems.empty());
  REQUIRE(inventory.left_alone.size() == 2);
  CHECK(inventory.left_alone.at("mtp.").n_tensors == 2);
  CHECK(inventory.left_alone.at("mtp.").n_bytes == 32);
  CHECK(inventory.left_alone.at("model.visual.").n_tensors == 1);
  CHECK(inventory.unexpected == std::vector<std::string>{kText + "norm.weight", "model.visualisation.weight"});
  CHECK(inventory.n_parameters() == Changed::golden(kReleased)->take().n_parameters());
}

TEST_CASE("config keys of qwen4_exp that are not known or defaulted are notes, nested and flat") {
  REQUIRE_GOLDEN(nested, kReleased);
  nested.config["surprise"] = 1;
  nested.config["text_config"]["other"] = 2;
  nested.config["text_config"].erase("norm_topk_prob");
  const std::vector<std::string> notes = nested.take().notes;
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] == "config.json: keys not known here: text_config.other, surprise");
  CHECK(notes[1] == "config.json: defaults used: norm_topk_prob = true");
  REQUIRE_GOLDEN(flat, kFused);
  flat.config["surprise"] = 1;
  CHECK(flat.take().notes.front() == "config.json: keys not known here: surprise");
}

TEST_CASE("tied embeddings of qwen4_exp need no lm_head") {
  REQUIRE_GOLDEN(changed, kFused);
  changed.tensors.erase("lm_head.weight");
  CHECK_THAT(only_problem(changed.take()), ContainsSubstring("lm_head.weight: missing"));
  changed.config["tie_word_embeddings"] = true;
  CHECK(changed.take().problems.empty());
}

}  // namespace
}  // namespace kalibri::checkpoint
