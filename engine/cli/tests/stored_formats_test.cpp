// What a checkpoint stores in a way that contradicts itself: engine and reference refuse the same, with exit status 2,
// a message that names file and tensor, and no dump. Each damage is one change to a directory that both accept.
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "engine/cli/tests/both_sides.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"
#include "oracle/dump/reader.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kFp8 = "kolibri1-k1-fp8";
const std::string kMlx = "mlx-affine/kolibri1-k1-mlx-mixed";

struct Directory {
  std::map<std::string, fixtures::StoredTensor> tensors;
  json config;

  void write(const fs::path& to) const {
    std::vector<fixtures::TensorDeclaration> declarations;
    for (const auto& [name, tensor] : tensors) declarations.push_back({name, tensor.dtype, tensor.shape});
    fs::create_directories(to);
    fixtures::SafetensorsWriter writer(to / "model.safetensors", declarations);
    for (const auto& [name, tensor] : tensors) writer.write(tensor.bytes);
    writer.close();
    fixtures::write_file(to / "config.json", config.dump());
  }
  void edit_quantization(const std::function<void(json&)>& edit) {
    edit(config["quantization"]);
    config["quantization_config"] = config["quantization"];
  }
  /// Stored again in F32, F16 or BF16; F16 of numbers that it has in range.
  void store_as(const std::string& name, const std::string& dtype) {
    fixtures::StoredTensor& tensor = tensors.at(name);
    std::vector<std::byte> bytes;
    for (const double value : tensor.values()) {
      const auto f32 = static_cast<float>(value);
      std::uint32_t word = 0;
      std::memcpy(&word, &f32, sizeof word);
      std::size_t n_bytes = sizeof word;
      if (dtype == "BF16") word >>= 16, n_bytes = 2;
      if (dtype == "F16") word = 0x3c00, n_bytes = 2;  // 1: which number it is does not matter
      const auto* first = reinterpret_cast<const std::byte*>(&word);
      bytes.insert(bytes.end(), first, first + n_bytes);
    }
    tensor.dtype = dtype;
    tensor.bytes = std::move(bytes);
  }
};

/// Both sides' exit statuses and messages for one short prompt, whose experts are few of many.
struct Outcome {
  int exit_status = 0;
  std::string err;
  bool left_a_dump = false;
};

Outcome run(test::Side side, const Directory& directory, const std::vector<std::string>& more = {}) {
  const fixtures::TempDirectory folder;
  directory.write(folder.path() / "model");
  const fs::path out = folder.path() / "out.h5";
  const fixtures::RunResult result = test::run_side(side, folder.path() / "model", {{"one", {3}}}, out, more);
  return {result.exit_status, result.err, fs::exists(out)};
}

struct Damage {
  std::vector<std::string> texts;  // of both sides' messages
  std::function<void(Directory&)> apply;
};

void check_refused(const std::string& set, const std::vector<Damage>& damages) {
  const auto golden = fixtures::find_golden(set);
  if (!golden) KALIBRI_SKIP("golden set " + set + " is not there");
  const Directory whole{fixtures::read_safetensors(*golden / "model.safetensors"),
                        json::parse(fixtures::read_file(*golden / "config.json"))};
  for (const test::Side side : test::kSides) {
    CAPTURE(test::name(side));
    CHECK(run(side, whole).exit_status == 0);
    for (const Damage& damage : damages) {
      CAPTURE(damage.texts);
      Directory changed = whole;
      damage.apply(changed);
      const Outcome outcome = run(side, changed);
      CHECK(outcome.exit_status == 2);
      CHECK_FALSE(outcome.left_a_dump);
      for (const std::string& text : damage.texts) CHECK_THAT(outcome.err, ContainsSubstring(text));
    }
  }
}

}  // namespace

TEST_CASE("packed weights whose scales and biases are F16 or of two types are refused alike") {
  const std::string module = "model.layers.1.mlp.switch_mlp.up_proj";
  const std::string file = "model.safetensors: ";
  check_refused(kMlx, {
                          {{file + module + ".scales: dtype F16, expected BF16 or F32"},
                           [&](Directory& d) {
                             d.store_as(module + ".scales", "F16");
                             d.store_as(module + ".biases", "F16");
                           }},
                          {{file + module + ".biases: dtype F32, but the scales are BF16"},
                           [&](Directory& d) { d.store_as(module + ".biases", "F32"); }},
                          {{file + module + ".biases: dtype BF16, but the scales are F32"},
                           [&](Directory& d) { d.store_as(module + ".scales", "F32"); }},
                      });
}

TEST_CASE("scales and biases in F32, as MLX makes them of F32 weights, give what the same numbers give in BF16") {
  const auto golden = fixtures::find_golden(kMlx);
  if (!golden) KALIBRI_SKIP("golden set is not there");
  Directory directory{fixtures::read_safetensors(*golden / "model.safetensors"),
                      json::parse(fixtures::read_file(*golden / "config.json"))};
  std::vector<std::string> grids;
  for (const auto& [name, tensor] : directory.tensors) {
    if (name.ends_with(".scales") || name.ends_with(".biases")) grids.push_back(name);
  }
  REQUIRE(grids.size() == 104);
  const fixtures::TempDirectory folder;
  const auto logits = [&](test::Side side, const std::string& name) {
    directory.write(folder.path() / "model");
    const fs::path out = folder.path() / (name + ".h5");
    REQUIRE(test::run_side(side, folder.path() / "model", {{"one", {3, 7, 5}}}, out).exit_status == 0);
    return dump::Reader(out).read_f64("one", "logits", 0, 3);
  };
  std::vector<std::vector<double>> before;
  for (const test::Side side : test::kSides) before.push_back(logits(side, test::name(side)));
  for (const std::string& name : grids) directory.store_as(name, "F32");
  for (const test::Side side : test::kSides) {
    CHECK(logits(side, std::string(test::name(side)) + "-f32") == before[static_cast<std::size_t>(side)]);
  }
}

TEST_CASE("what an MLX directory says of its tensors and does not hold is refused alike") {
  const std::string bias = "model.layers.2.mlp.expert_bias";
  check_refused(kMlx, {
                          {{"model.safetensors: " + bias + ": dtype BF16, expected F32"},
                           [&](Directory& d) { d.store_as(bias, "BF16"); }},
                          {{"config.json", "model.layers.9.mlp.switch_mlp.up_proj", "no such module"},
                           [](Directory& d) {
                             d.edit_quantization([](json& q) {
                               q["model.layers.9.mlp.switch_mlp.up_proj"] = {{"bits", 8}, {"group_size", 64}};
                             });
                           }},
                          {{"config.json", "lm_haed", "no such module"},
                           [](Directory& d) { d.edit_quantization([](json& q) { q["lm_haed"] = false; }); }},
                          {{"config.json", "quantization", "\"4bit\"", "expected an object"},
                           [](Directory& d) { d.edit_quantization([](json& q) { q = "4bit"; }); }},
                          {{"config.json", "quantization", "[4,64]", "expected an object"},
                           [](Directory& d) {
                             d.config["quantization"] = {4, 64};
                           }},
                          {{"model.safetensors: lm_head.weight: ", "expected"},
                           [](Directory& d) {  // biases alone beside a plain weight
                             d.tensors["lm_head.weight"] = {"BF16", {256, 128}, std::vector<std::byte>(256 * 128 * 2)};
                             d.tensors.erase("lm_head.scales");
                           }},
                      });
}

TEST_CASE("block scales beside a weight that is not FP8 are refused alike") {
  std::vector<Damage> damages;
  for (const std::string module :
       {"model.embed_tokens", "model.norm", "model.layers.0.mlp.gate", "model.layers.3.self_attn.q_norm", "lm_head"}) {
    damages.push_back(
        {{"model.safetensors: " + module + ".weight_scale_inv: block scales", "BF16"}, [module](Directory& d) {
           d.tensors[module + ".weight_scale_inv"] = {"F32", {1, 1}, std::vector<std::byte>(4)};
         }});
  }
  const std::string expert = "model.layers.1.mlp.experts.11.down_proj.weight";
  damages.push_back({{"model.safetensors: " + expert + "_scale_inv: block scales", "BF16"}, [expert](Directory& d) {
                       fixtures::StoredTensor& weight = d.tensors.at(expert);
                       weight.bytes.resize(2 * weight.bytes.size());
                       weight.dtype = "BF16";
                     }});
  check_refused(kFp8, damages);
  const std::string bias = "model.layers.2.mlp.expert_bias";
  check_refused(kMlx, {{{"model.safetensors: " + bias + "_scale_inv: block scales", "F32"}, [bias](Directory& d) {
                          d.tensors[bias + "_scale_inv"] = {"F32", {1}, std::vector<std::byte>(4)};
                        }}});
}

TEST_CASE("a block scale that is no number or too large is refused in every expert, taken or not, cached or not") {
  const auto golden = fixtures::find_golden(kFp8);
  if (!golden) KALIBRI_SKIP("golden set is not there");
  const Directory whole{fixtures::read_safetensors(*golden / "model.safetensors"),
                        json::parse(fixtures::read_file(*golden / "config.json"))};
  const auto with_scale = [&](const std::string& name, float scale) {
    Directory changed = whole;
    std::memcpy(changed.tensors.at(name).bytes.data(), &scale, sizeof scale);
    return changed;
  };
  for (std::int64_t e = 0; e < 16; e += 3) {  // one token takes a few of 16
    const std::string name = "model.layers.4.mlp.experts." + std::to_string(e) + ".down_proj.weight_scale_inv";
    CAPTURE(name);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 0x1p16F, -0x1p16F}) {
      const std::string number = fmt::format("{}", bad);
      CAPTURE(number);
      const Directory damaged = with_scale(name, bad);
      const auto check_refusal = [&](const Outcome& outcome) {
        CHECK(outcome.exit_status == 2);
        CHECK_THAT(outcome.err, ContainsSubstring("model.safetensors: " + name) && ContainsSubstring(number));
      };
      for (const test::Side side : test::kSides) check_refusal(run(side, damaged));
      check_refusal(run(test::Side::engine, damaged, {"--expert-cache", "3"}));
    }
  }
  const Directory at_limit = with_scale("model.layers.4.mlp.experts.0.down_proj.weight_scale_inv", 0x1.fffffep15F);
  for (const test::Side side : test::kSides) CHECK(run(side, at_limit).exit_status == 0);
}
