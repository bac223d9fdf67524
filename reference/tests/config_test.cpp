// What config.json must say for Kolibri 1, and what is refused.
#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"
#include "reference/error.hpp"
#include "reference/kolibri1_config.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

const json kGood = json::parse(R"({
  "model_type": "kolibri1", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
  "head_dim": 4, "hidden_act": "silu", "max_position_embeddings": 32, "rms_norm_eps": 1e-06, "vocab_size": 10,
  "rope_theta": 10000.0, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3,
  "shared_expert_intermediate_size": 5, "norm_topk_prob": false, "attention_bias": false, "tie_word_embeddings": false,
  "head_dtype": "float32", "use_sliding_window": true, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"],
  "rope_scaling": null, "something_unknown": {"a": [1]}})");

Kolibri1Config read(const json& config) {
  const fixtures::TempDirectory folder;
  fixtures::write_file(folder.path() / "config.json", config.dump());
  fixtures::write_file(folder.path() / "model.safetensors", fixtures::raw_safetensors("{}", ""));
  return read_kolibri1_config(Checkpoint(folder.path()));
}

/// The message about kGood with `key` set to `value`.
std::string complaint(const char* key, const json& value) {
  json config = kGood;
  config[key] = value;
  try {
    read(config);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("a whole config is read, and keys that nobody needs are left alone") {
  const Kolibri1Config config = read(kGood);
  CHECK(config.hidden_size == 8);
  CHECK(config.num_attention_heads == 6);
  CHECK(config.head_dim == 4);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.rope_theta == 10000.0);
  CHECK(config.shared_expert_intermediate_size == 5);
  CHECK(config.sliding_window == 7);
  CHECK(config.is_sliding == std::vector<bool>{true, false});
}

TEST_CASE("a missing key is refused, none has a default") {
  for (const char* key : {"hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "head_dim",
                          "hidden_act",
                          "max_position_embeddings",
                          "rms_norm_eps",
                          "vocab_size",
                          "rope_theta",
                          "num_experts",
                          "num_experts_per_tok",
                          "moe_intermediate_size",
                          "shared_expert_intermediate_size",
                          "norm_topk_prob",
                          "attention_bias",
                          "tie_word_embeddings",
                          "head_dtype",
                          "use_sliding_window",
                          "sliding_window",
                          "layer_types"}) {
    CAPTURE(key);
    json config = kGood;
    config.erase(key);
    CHECK_THROWS_WITH(read(config), ContainsSubstring("config.json: has no '" + std::string(key) + "'"));
  }
}

TEST_CASE("what is not implemented is refused, not ignored") {
  CHECK_THAT(complaint("norm_topk_prob", true), ContainsSubstring("'norm_topk_prob' is true"));
  CHECK_THAT(complaint("tie_word_embeddings", true), ContainsSubstring("'tie_word_embeddings' is true"));
  CHECK_THAT(complaint("attention_bias", true), ContainsSubstring("'attention_bias' is true"));
  CHECK_THAT(complaint("hidden_act", "gelu"), ContainsSubstring("'hidden_act' is \"gelu\""));
  CHECK_THAT(complaint("use_sliding_window", false), ContainsSubstring("'use_sliding_window' is false"));
  CHECK_THAT(complaint("rope_scaling", {{"factor", 4}}), ContainsSubstring("'rope_scaling'"));
  CHECK_THAT(complaint("rope_parameters", {{"rope_type", "yarn"}}), ContainsSubstring("'rope_type' is \"yarn\""));
  const json fp8{{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  CHECK(complaint("quantization_config", fp8) == "");
  json other = fp8;
  other["weight_block_size"] = {64, 128};
  CHECK_THAT(complaint("quantization_config", other), ContainsSubstring("'weight_block_size' is [64,128]"));
  other = fp8;
  other["activation_scheme"] = "static";
  CHECK_THAT(complaint("quantization_config", other), ContainsSubstring("'activation_scheme' is \"static\""));
  other = fp8;
  other["quant_method"] = "awq";
  CHECK_THAT(complaint("quantization_config", other), ContainsSubstring("'quant_method' is \"awq\""));
}

TEST_CASE("values of the wrong kind or that contradict each other are refused") {
  CHECK_THAT(complaint("hidden_size", 8.0), ContainsSubstring("'hidden_size' is 8.0"));
  CHECK_THAT(complaint("hidden_size", "8"), ContainsSubstring("'hidden_size'"));
  CHECK_THAT(complaint("hidden_size", 0), ContainsSubstring("'hidden_size' is 0"));
  CHECK_THAT(complaint("hidden_size", -8), ContainsSubstring("'hidden_size' is -8"));
  CHECK_THAT(complaint("vocab_size", 1ULL << 63), ContainsSubstring("'vocab_size'"));
  CHECK_THAT(complaint("rms_norm_eps", 0), ContainsSubstring("'rms_norm_eps' is 0"));
  CHECK_THAT(complaint("rms_norm_eps", nullptr), ContainsSubstring("'rms_norm_eps' is null"));
  CHECK_THAT(complaint("norm_topk_prob", 0), ContainsSubstring("'norm_topk_prob' is 0"));
  CHECK_THAT(complaint("layer_types", {"full_attention"}), ContainsSubstring("1 entries, but num_hidden_layers is 2"));
  CHECK_THAT(complaint("layer_types", {"full_attention", "linear"}), ContainsSubstring("'linear' is none of"));
  CHECK_THAT(complaint("layer_types", {1, 2}), ContainsSubstring("'layer_types'"));
  CHECK_THAT(complaint("num_key_value_heads", 4), ContainsSubstring("no multiple of num_key_value_heads 4"));
  CHECK_THAT(complaint("head_dim", 5), ContainsSubstring("'head_dim' is 5"));
  CHECK_THAT(complaint("num_experts_per_tok", 5), ContainsSubstring("more than num_experts 4"));
}

TEST_CASE("rope_parameters' theta wins over the older key, and a model without sliding layers needs no window") {
  json config = kGood;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  CHECK(read(config).rope_theta == 500.0);
  config.erase("rope_theta");
  CHECK(read(config).rope_theta == 500.0);
  config["layer_types"] = {"full_attention", "full_attention"};
  config.erase("sliding_window");
  config.erase("use_sliding_window");
  CHECK(read(config).sliding_window == 0);
}

}  // namespace
}  // namespace kalibri::reference::test
