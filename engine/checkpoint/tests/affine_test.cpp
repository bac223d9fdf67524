// MLX directories: what the golden ones hold, and what is refused when one thing is wrong with them.
#include <cstring>
#include <functional>

#include "engine/checkpoint/affine_config.hpp"
#include "engine/checkpoint/tests/changed.hpp"
#include "engine/checkpoint/tests/refusal.hpp"
#include "engine/checkpoint/tests/sample_config.hpp"

namespace kalibri::checkpoint {
namespace {

using Catch::Matchers::ContainsSubstring;

const std::string kMixed = "mlx-affine/kolibri1-k1-mlx-mixed";
const std::string kUniform = "mlx-affine/kolibri1-k1-mlx-4bit";
const std::string kQuery = "model.layers.2.self_attn.q_proj";
const std::string kExperts = "model.layers.1.mlp.switch_mlp.up_proj";

TEST_CASE("the golden MLX directories are whole, and hold as many parameters as their source") {
  REQUIRE_GOLDEN(source, "kolibri1-k1-fp8");
  for (const std::string& set : {kMixed, kUniform}) {
    INFO(set);
    REQUIRE_GOLDEN(converted, set);
    const Inventory inventory = converted.take(/*check_values=*/true);
    CHECK(inventory.problems.empty());
    CHECK(inventory.unexpected.empty());
    CHECK(inventory.notes.empty());
    CHECK(inventory.n_parameters() == source.take().n_parameters());
    CHECK(inventory.kinds.at(TensorKind::expert).dtypes == std::set<Dtype>{Dtype::u32});
    CHECK(inventory.kinds.at(TensorKind::scale).n_tensors == 2 * (5 * 10 + 2));
    CHECK(inventory.kinds.at(TensorKind::router).dtypes == std::set<Dtype>{Dtype::bf16, Dtype::f32});
  }
}

TEST_CASE("the released model in MLX's layout has 1,907 tensors when all that can be is quantised") {
  const Kolibri1Config config = Kolibri1Config::from_json(test::released_config(), "config.json");
  std::size_t n = 0;
  for (const ExpectedTensor& tensor : kolibri1_tensors(config, {ExpertLayout::stacked})) {
    n += tensor.storage == Storage::plain || tensor.storage == Storage::f32 ? 1 : 3;
  }
  CHECK(n == 1907);
}

TEST_CASE("a module's own format goes before the block's, and false says that there is none") {
  const auto config = nlohmann::json::parse(R"({"quantization": {"group_size": 64, "bits": 4, "mode": "affine",
      "a": {"group_size": 32, "bits": 8}, "b": false, "c": true}})");
  const auto affine = AffineConfig::from_json(config, "config.json");
  REQUIRE(affine);
  CHECK(affine->of("a") == AffineFormat{8, 32});
  CHECK_FALSE(affine->of("b"));
  CHECK(affine->of("c") == AffineFormat{4, 64});
  CHECK(affine->of("d") == AffineFormat{4, 64});
  CHECK_FALSE(AffineConfig::from_json(nlohmann::json::parse(R"({"quantization": null})"), "config.json"));
}

TEST_CASE("a quantization block that names no affine format is refused by the key") {
  REQUIRE_GOLDEN(golden, kMixed);
  const auto refused = [&](std::initializer_list<std::string_view> parts,
                           const std::function<void(nlohmann::json&)>& edit) {
    Changed changed = golden;
    edit(changed.config["quantization"]);
    changed.config["quantization_config"] = changed.config["quantization"];
    test::check_refused(ErrorCode::config, parts, [&] { (void)changed.take(); });
  };
  refused({"config.json", "quantization.bits", "7, expected 2, 3, 4, 5, 6 or 8"}, [](auto& q) { q["bits"] = 7; });
  refused({"quantization.bits"}, [](auto& q) { q.erase("bits"); });
  refused({"quantization.group_size", "48, expected 32, 64 or 128"}, [](auto& q) { q["group_size"] = 48; });
  refused({"quantization.mode", "affine"}, [](auto& q) { q["mode"] = "mxfp4"; });
  refused({"quantization." + kQuery + ".bits", "1, expected"}, [](auto& q) { q[kQuery]["bits"] = 1; });
  refused({kQuery, "expected an object"}, [](auto& q) { q[kQuery] = 8; });
  for (const nlohmann::json& block : {nlohmann::json("4bit"), nlohmann::json{4, 64}, nlohmann::json(true)}) {
    refused({"config.json: quantization: " + block.dump() + ", expected an object with bits and group_size"},
            [&](auto& q) { q = block; });
  }
  for (const nlohmann::json& entry : {nlohmann::json(false), nlohmann::json{{"bits", 8}, {"group_size", 64}}}) {
    refused({"config.json: quantization.model.layers.7.self_attn.q_proj: no such module",
             "no model.layers.7.self_attn.q_proj.weight"},
            [&](auto& q) { q["model.layers.7.self_attn.q_proj"] = entry; });
  }

  golden.config["quantization_config"]["bits"] = 8;
  test::check_refused(ErrorCode::config, {"quantization_config: differs from quantization"},
                      [&] { (void)golden.take(); });
}

/// The one problem of the mixed golden directory after a change.
void check_problem(const std::string& tensor, std::initializer_list<std::string_view> parts,
                   const std::function<void(Changed&)>& edit) {
  REQUIRE_GOLDEN(changed, kMixed);
  edit(changed);
  if (changed.config.contains("quantization_config")) {
    changed.config["quantization_config"] = changed.config["quantization"];
  }
  const std::vector<Problem> problems = changed.take(/*check_values=*/true).problems;
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].tensor == tensor);
  for (const std::string_view part : parts) CHECK_THAT(problems[0].text, ContainsSubstring(std::string(part)));
}

TEST_CASE("packed weights whose parts do not fit are problems by name") {
  check_problem(kQuery + ".weight", {"shape [192, 32], expected [192, 16]", "128 columns of 4 bits"},
                [](Changed& c) { c.config["quantization"].erase(kQuery); });  // a reader that ignores a module's bits
  check_problem(
      "model.layers.2.mlp.shared_experts.down_proj.weight", {"groups of 128 do not divide its 192 columns"},
      [](Changed& c) { c.config["quantization"]["model.layers.2.mlp.shared_experts.down_proj"]["group_size"] = 128; });
  check_problem(kQuery + ".weight", {"packed codes (U32)", kQuery + ": false"},
                [](Changed& c) { c.config["quantization"][kQuery] = false; });
  check_problem(kExperts + ".scales", {"missing, expected [16, 64, 2]"},
                [](Changed& c) { c.tensors.erase(kExperts + ".scales"); });
  check_problem(kQuery + ".biases", {"missing, expected [192, 2]"},
                [](Changed& c) { c.tensors.erase(kQuery + ".biases"); });
  check_problem("lm_head.scales", {"shape [2, 256], expected [256, 2]"}, [](Changed& c) {
    c.tensors.at("lm_head.scales").shape = {2, 256};
  });
  check_problem("lm_head.scales", {"dtype F16, expected BF16 or F32"},
                [](Changed& c) { c.tensors.at("lm_head.scales").dtype = "F16"; });
  check_problem("lm_head.biases", {"dtype F32, but the scales are BF16"}, [](Changed& c) {
    auto& biases = c.tensors.at("lm_head.biases");
    biases.dtype = "F32";
    biases.bytes.resize(2 * biases.bytes.size());
  });
  check_problem(kQuery + ".weight", {"dtype I32, but " + kQuery + ".scales makes it packed codes, expected U32"},
                [](Changed& c) { c.tensors.at(kQuery + ".weight").dtype = "I32"; });
  check_problem("model.layers.3.mlp.gate.weight", {"shape [16, 32], expected [16, 128]"}, [](Changed& c) {
    auto& gate = c.tensors.at("model.layers.3.mlp.gate.weight");  // a router in 8 bits
    gate.dtype = "U32";
    gate.shape = {16, 32};
    gate.bytes.resize(gate.bytes.size() / 2);
  });
}

TEST_CASE("a quantization block that is no object is told so, whatever stands beside it") {
  const auto config = nlohmann::json::parse(R"({"quantization": [4, 64], "quantization_config": {"bits": 4}})");
  test::check_refused(ErrorCode::config, {"quantization: [4,64], expected an object"},
                      [&] { (void)AffineConfig::from_json(config, "config.json"); });
}

TEST_CASE("packed weights without a quantization block are problems, each of them") {
  REQUIRE_GOLDEN(changed, kMixed);
  changed.config.erase("quantization");
  changed.config.erase("quantization_config");
  const std::vector<Problem> problems = changed.take().problems;
  CHECK(problems.size() == 5 * 10 + 2);
  CHECK_THAT(problems[0].text, ContainsSubstring("config.json has no 'quantization'"));
}

TEST_CASE("a NaN among scales or biases is found in the matrix that it belongs to, and only there") {
  REQUIRE_GOLDEN(golden, kMixed);
  for (const std::string part : {".scales", ".biases"}) {
    Changed changed = golden;
    const std::uint16_t nan = 0x7fc1;
    // Expert 9, row 5, group 1 of [16, 64, 2].
    std::memcpy(changed.tensors.at(kExperts + part).bytes.data() + ((9 * 64 + 5) * 2 + 1) * sizeof nan, &nan, 2);
    const fixtures::TempDirectory directory;
    changed.write(directory.path());
    const Checkpoint checkpoint = Checkpoint::open(directory.path());
    const auto expert = [&](std::int64_t index, bool check_values) {
      (void)checkpoint.stacked_matrix(kExperts + ".weight", 16, 64, 128, index, check_values);
    };
    test::check_refused(ErrorCode::tensor, {kExperts + part, "NaN or infinity at (9, 5, 1)"},
                        [&] { expert(9, /*check_values=*/true); });
    expert(9, /*check_values=*/false);
    expert(8, /*check_values=*/true);
    expert(10, /*check_values=*/true);
    CHECK(take_inventory(checkpoint, /*check_values=*/true).problems.size() == 1);
  }
}

TEST_CASE("a format that config.json gives to a module without scales is noted") {
  REQUIRE_GOLDEN(changed, kMixed);
  for (const char* module : {"model.layers.0.mlp.gate", "model.layers.1.mlp.gate"}) {
    changed.config["quantization"][module] = {{"bits", 8}, {"group_size", 64}};
  }
  changed.config.erase("quantization_config");
  const Inventory inventory = changed.take();
  CHECK(inventory.problems.empty());
  REQUIRE(inventory.notes.size() == 1);
  CHECK_THAT(inventory.notes[0], ContainsSubstring("model.layers.0.mlp.gate and 1 more"));
}

}  // namespace
}  // namespace kalibri::checkpoint
