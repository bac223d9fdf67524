// The inventory against the released model's published sums, and against golden checkpoints with one thing wrong.
#include "engine/checkpoint/inventory.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "engine/checkpoint/tests/changed.hpp"
#include "engine/checkpoint/tests/refusal.hpp"
#include "engine/checkpoint/tests/sample_config.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::checkpoint {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::StoredTensor;

constexpr const char* kSet = "kolibri1-k1-fp8";

TEST_CASE("the released model's tensors add up to the model card's numbers") {
  const Kolibri1Config config = Kolibri1Config::from_json(test::released_config(), "config.json");
  std::map<TensorKind, std::int64_t> n_parameters;
  std::int64_t n_all = 0;
  std::int64_t n_scales = 0;
  const auto tensors = kolibri1_tensors(config);
  for (const ExpectedTensor& tensor : tensors) {
    const std::int64_t n = tensor.shape.size() == 1 ? tensor.shape[0] : tensor.shape[0] * tensor.shape[1];
    n_parameters[tensor.kind] += n;
    n_all += n;
    n_scales += tensor.storage == Storage::matrix ? 1 : 0;
  }
  CHECK(tensors.size() == 58'353);
  CHECK(n_scales == 57'950);
  CHECK(n_all == 78'103'074'560);
  CHECK(n_parameters[TensorKind::expert] == 75'497'472'000);
  CHECK(n_parameters[TensorKind::attention] == 1'703'936'000);
  CHECK(n_parameters[TensorKind::shared_expert] == 196'608'000);
  CHECK(n_parameters[TensorKind::embedding] + n_parameters[TensorKind::head] == 655'360'000);
  CHECK(n_parameters[TensorKind::router] == 49'152'000 + 19'200);
  CHECK(n_parameters[TensorKind::norm] == 527'360);
}

TEST_CASE("the golden checkpoints are whole") {
  for (const char* set : {"kolibri1-k1", "kolibri1-k1-fp8", "kolibri1-k2", "kolibri1-k2-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory) KALIBRI_SKIP(std::string("golden set missing: ") + set);
    INFO(set);
    const Checkpoint checkpoint = Checkpoint::open(*directory);
    const Inventory inventory = take_inventory(checkpoint, true);
    CHECK(inventory.problems.empty());
    CHECK(inventory.unexpected.empty());
    CHECK(inventory.notes == std::vector<std::string>{"not part of the checkpoint: golden.safetensors"});
    CHECK(inventory.model_type == "kolibri1");
    std::int64_t n_tensors = 0;
    for (const auto& [kind, sum] : inventory.kinds) n_tensors += sum.n_tensors;
    CHECK(n_tensors == static_cast<std::int64_t>(checkpoint.tensors().size()));
    CHECK((inventory.kinds.contains(TensorKind::scale)) == std::string(set).ends_with("-fp8"));
  }
}

TEST_CASE("a missing tensor is a problem by its name and shape") {
  REQUIRE_GOLDEN(changed, kSet);
  changed.tensors.erase("model.layers.3.post_ffn_norm.weight");
  changed.tensors.erase("model.layers.2.mlp.experts.5.down_proj.weight");
  const Inventory inventory = changed.take();
  REQUIRE(inventory.problems.size() == 2);
  CHECK(inventory.problems[0].tensor == "model.layers.2.mlp.experts.5.down_proj.weight");
  CHECK_THAT(inventory.problems[0].text, ContainsSubstring("missing, expected [128, 64]"));
  CHECK(inventory.problems[0].file.empty());
  CHECK(inventory.problems[1].tensor == "model.layers.3.post_ffn_norm.weight");
  CHECK(inventory.unexpected ==
        std::vector<std::string>{"model.layers.2.mlp.experts.5.down_proj.weight_scale_inv"});  // now of no weight
}

TEST_CASE("a tensor of another shape than config.json's is a problem") {
  REQUIRE_GOLDEN(changed, kSet);
  changed.config["num_experts"] = 8;
  const Inventory inventory = changed.take();
  REQUIRE(inventory.problems.size() == 10);
  CHECK(inventory.problems[0].file == "model.safetensors");
  CHECK(inventory.problems[0].tensor == "model.layers.0.mlp.gate.weight");
  CHECK_THAT(inventory.problems[0].text, ContainsSubstring("shape [16, 128], expected [8, 128]"));
  CHECK(inventory.problems[1].tensor == "model.layers.0.moe.router.expert_bias");
  CHECK(inventory.unexpected.size() == 5U * 8U * 3U * 2U);
}

TEST_CASE("a missing scale is a problem") {
  REQUIRE_GOLDEN(changed, kSet);
  changed.tensors.erase("model.layers.0.self_attn.k_proj.weight_scale_inv");
  const Inventory inventory = changed.take();
  REQUIRE(inventory.problems.size() == 1);
  CHECK(inventory.problems[0].tensor == "model.layers.0.self_attn.k_proj.weight_scale_inv");
}

TEST_CASE("a norm, router or embedding in FP8 is a problem") {
  REQUIRE_GOLDEN(changed, kSet);
  for (const char* name : {"model.norm.weight", "model.layers.1.mlp.gate.weight", "model.embed_tokens.weight"}) {
    changed.tensors.at(name).dtype = "F8_E4M3";
    changed.tensors.at(name).bytes.resize(changed.tensors.at(name).bytes.size() / 2);
  }
  const Inventory inventory = changed.take();
  REQUIRE(inventory.problems.size() == 3);
  for (const Problem& problem : inventory.problems) {
    CHECK_THAT(problem.text, ContainsSubstring("dtype F8_E4M3, expected BF16 or F32"));
  }
}

TEST_CASE("expert_bias may be F32") {
  REQUIRE_GOLDEN(changed, kSet);
  StoredTensor& bias = changed.tensors.at("model.layers.1.moe.router.expert_bias");
  const std::vector<double> values = bias.values();
  bias.dtype = "F32";
  bias.bytes.clear();
  for (const double value : values) {
    const auto narrow = static_cast<float>(value);
    const auto* bytes = reinterpret_cast<const std::byte*>(&narrow);
    bias.bytes.insert(bias.bytes.end(), bytes, bytes + sizeof narrow);
  }
  CHECK(changed.take().problems.empty());
}

TEST_CASE("a NaN code is a problem when values are looked at") {
  REQUIRE_GOLDEN(changed, kSet);
  changed.tensors.at("model.layers.4.mlp.experts.15.up_proj.weight").bytes[130] = std::byte{0xff};
  CHECK(changed.take(false).problems.empty());
  const Inventory inventory = changed.take(true);
  REQUIRE(inventory.problems.size() == 1);
  CHECK(inventory.problems[0].tensor == "model.layers.4.mlp.experts.15.up_proj.weight");
  CHECK_THAT(inventory.problems[0].text, ContainsSubstring("NaN code at (1, 2)"));
}

TEST_CASE("a bf16 NaN and an f32 infinity are problems when values are looked at") {
  REQUIRE_GOLDEN(changed, kSet);
  StoredTensor& norm = changed.tensors.at("model.layers.1.input_layernorm.weight");
  REQUIRE(norm.dtype == "BF16");
  norm.bytes[2 * 17] = std::byte{0x01};
  norm.bytes[2 * 17 + 1] = std::byte{0x7f};
  CHECK(changed.take(true).problems.empty());  // 0x7f01 is a large number
  norm.bytes[2 * 17] = std::byte{0x81};
  CHECK(changed.take(false).problems.empty());
  StoredTensor& bias = changed.tensors.at("model.layers.1.moe.router.expert_bias");
  bias = {"F32", {16}, std::vector<std::byte>(64)};
  bias.bytes[4 * 15 + 2] = std::byte{0x80};
  bias.bytes[4 * 15 + 3] = std::byte{0xff};
  const Inventory inventory = changed.take(true);
  REQUIRE(inventory.problems.size() == 2);
  CHECK_THAT(inventory.problems[0].text, ContainsSubstring("NaN or infinity at (17)"));
  CHECK_THAT(inventory.problems[1].text, ContainsSubstring("NaN or infinity at (15)"));
}

TEST_CASE("a tensor that the family does not know is listed, not a problem") {
  REQUIRE_GOLDEN(changed, kSet);
  changed.tensors["model.layers.0.self_attn.q_proj.bias"] = {"F32", {1}, std::vector<std::byte>(4)};
  const Inventory inventory = changed.take();
  CHECK(inventory.problems.empty());
  CHECK(inventory.unexpected == std::vector<std::string>{"model.layers.0.self_attn.q_proj.bias"});
}

TEST_CASE("modules_to_not_convert and unknown keys that disagree are notes") {
  REQUIRE_GOLDEN(changed, kSet);
  CHECK(changed.take().notes.empty());
  changed.config["quantization_config"]["modules_to_not_convert"].push_back("model.layers.1.self_attn.q_proj");
  changed.config["quantization_config"]["modules_to_not_convert"].push_back("model.layers.2.mlp");
  changed.config["surprise"] = 1;
  const Inventory inventory = changed.take();
  CHECK(inventory.problems.empty());
  REQUIRE(inventory.notes.size() == 2);
  CHECK(inventory.notes[0] == "config.json: keys not known here: surprise");
  CHECK_THAT(inventory.notes[1],
             ContainsSubstring("model.layers.1.self_attn.q_proj.weight and 51 more: F8_E4M3 though listed"));
}

TEST_CASE("FP8 without quantization_config, and the reverse, are notes") {
  REQUIRE_GOLDEN(changed, kSet);
  changed.config.erase("quantization_config");
  REQUIRE(changed.take().notes.size() == 1);
  CHECK_THAT(changed.take().notes[0], ContainsSubstring("and 274 more: F8_E4M3 though config.json has no"));

  const auto plain = fixtures::find_golden("kolibri1-k1");
  if (!plain) KALIBRI_SKIP("golden set kolibri1-k1 missing");
  changed = *Changed::golden(kSet);
  changed.tensors = fixtures::read_safetensors(*plain / "model.safetensors");
  REQUIRE(changed.take().notes.size() == 1);
  CHECK_THAT(changed.take().notes[0], ContainsSubstring("and 274 more: not F8_E4M3 though not listed"));
}

TEST_CASE("an unknown family is refused by its name") {
  REQUIRE_GOLDEN(changed, kSet);
  changed.config["model_type"] = "llama";
  test::check_refused(ErrorCode::config, {"config.json: model_type: 'llama', expected kolibri1 or qwen4_exp"},
                      [&] { (void)changed.take(); });
  changed.config.erase("model_type");
  test::check_refused(ErrorCode::config, {"config.json: model_type: missing"}, [&] { (void)changed.take(); });
}

}  // namespace
}  // namespace kalibri::checkpoint
