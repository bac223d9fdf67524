// Kolibri 1's config.json: what is needed, what is refused and by which name.
#include "engine/checkpoint/kolibri1_config.hpp"

#include <functional>
#include <string>

#include "engine/checkpoint/tests/refusal.hpp"
#include "engine/checkpoint/tests/sample_config.hpp"

namespace kalibri::checkpoint {
namespace {

using nlohmann::json;
using test::released_config;

Kolibri1Config read(const json& config) { return Kolibri1Config::from_json(config, "DIR/config.json"); }

/// The released configuration with `key` set to `value` must be refused with "DIR/config.json: <named>: <text>".
void check_key(const std::string& key, const json& value, std::string_view text, std::string_view named = "") {
  INFO(key << " = " << value.dump());
  json config = released_config();
  config[key] = value;
  const std::string start = "DIR/config.json: " + std::string(named.empty() ? std::string_view(key) : named) + ": ";
  test::check_refused(ErrorCode::config, {start, text}, [&] { read(config); });
}

void check_quantization(const std::string& key, const json& value, std::string_view text) {
  json block = released_config()["quantization_config"];
  block[key] = value;
  check_key("quantization_config", block, text, "quantization_config." + key);
}

TEST_CASE("the released configuration reads as the specification has it") {
  const Kolibri1Config config = read(released_config());
  CHECK(config.hidden_size == 2560);
  CHECK(config.num_attention_heads == 48);
  CHECK(config.head_dim == 128);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.num_experts_per_tok == 6);
  CHECK(config.sliding_window == 513);
  CHECK(config.layer_is_sliding.size() == 50);
  CHECK(config.layer_is_sliding[3]);
  CHECK_FALSE(config.layer_is_sliding[4]);
  CHECK(config.has_quantization_config);
  CHECK(config.modules_to_not_convert == std::vector<std::string>{"model.layers.0.mlp.gate"});
  CHECK(config.unknown_keys.empty());
}

TEST_CASE("each key that shapes a number is needed") {
  for (const char* key : {"model_type",
                          "hidden_size",
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
                          "sliding_window",
                          "use_sliding_window",
                          "layer_types",
                          "attention_bias",
                          "tie_word_embeddings",
                          "head_dtype"}) {
    INFO(key);
    json config = released_config();
    config.erase(key);
    test::check_refused(ErrorCode::config, {std::string("DIR/config.json: ") + key + ": missing"},
                        [&] { read(config); });
  }
}

TEST_CASE("keys that shape no number may be missing") {
  json config = released_config();
  for (const char* key : {"architectures", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
                          "use_cache", "quantization_config"}) {
    config.erase(key);
  }
  CHECK_FALSE(read(config).has_quantization_config);
}

TEST_CASE("unknown keys are listed, not refused") {
  json config = released_config();
  config["router_jitter"] = 0.1;
  config["rope_parameters"] = {{"rope_theta", 5000.0}, {"rope_type", "default"}, {"factor", 2}};
  config["quantization_config"]["fmt"] = "e4m3";
  CHECK(read(config).unknown_keys ==
        std::vector<std::string>{"rope_parameters.factor", "quantization_config.fmt", "router_jitter"});
}

TEST_CASE("a size that is no whole number in range is refused") {
  check_key("hidden_size", "2560", "\"2560\", expected a whole number");
  check_key("hidden_size", 2560.0, "2560.0, expected a whole number");
  check_key("hidden_size", nullptr, "null, expected a whole number");
  check_key("hidden_size", true, "true, expected a whole number");
  check_key("num_hidden_layers", 0, "0, expected 1 to 2147483647");
  check_key("vocab_size", -128000, "-128000, expected 1 to 2147483647");
  check_key("vocab_size", 2147483648, "2147483648, expected 1 to");
  check_key("num_experts", 18446744073709551615U, "18446744073709551615, expected 1 to");
  check_key("sliding_window", 0, "0, expected 1 to");
}

TEST_CASE("sizes that contradict each other are refused") {
  check_key("num_experts_per_tok", 385, "385, more than num_experts 384");
  check_key("num_key_value_heads", 5, "5 does not divide num_attention_heads 48");
  check_key("num_key_value_heads", 96, "96 does not divide num_attention_heads 48");
  check_key("head_dim", 127, "127 is odd");
}

TEST_CASE("sizes whose products overflow or ask for absurd amounts are refused") {
  check_key("head_dim", 2147483646, "48 heads of 2147483646 are more than");
  check_key("num_experts", 2147483647, "2147483647 in each of 50 layers are more than");
  json config = released_config();
  config["vocab_size"] = 2147483647;
  config["hidden_size"] = 2147483647;
  test::check_refused(ErrorCode::config, {"hidden_size: the sizes of this model overflow"}, [&] { read(config); });
}

TEST_CASE("layer_types of the wrong length, with another name or of another type are refused") {
  json types = released_config()["layer_types"];
  types.push_back("full_attention");
  check_key("layer_types", types, "51 entries, expected 50 (num_hidden_layers)");
  check_key("layer_types", json::array(), "0 entries, expected 50");
  types = released_config()["layer_types"];
  types[7] = "linear_attention";
  check_key("layer_types", types, "'linear_attention' (layer 7), expected sliding_attention or full_attention");
  types[7] = 1;
  check_key("layer_types", types, "1 in a list of strings");
  check_key("layer_types", "full_attention", "expected a list of strings");
}

TEST_CASE("what this family does not have is refused by name") {
  check_key("model_type", "qwen4_exp", "\"qwen4_exp\", expected \"kolibri1\"");
  check_key("norm_topk_prob", true, "true, expected false (renormalised router weights are not implemented)");
  check_key("norm_topk_prob", 0, "0, expected false");
  check_key("tie_word_embeddings", true, "tied embeddings are not implemented");
  check_key("attention_bias", true, "attention biases are not implemented");
  check_key("hidden_act", "gelu", "\"gelu\", expected \"silu\"");
  check_key("head_dtype", "bfloat16", "\"bfloat16\", expected \"float32\"");
  check_key("use_sliding_window", false, "false, expected true (layer_types has sliding_attention)");
  check_key("rope_scaling", {{"type", "yarn"}}, "scaled rotary embeddings are not implemented");
}

TEST_CASE("a model without sliding layers needs no window") {
  json config = released_config();
  config["layer_types"] = std::vector<std::string>(50, "full_attention");
  config["use_sliding_window"] = false;
  config["sliding_window"] = nullptr;
  CHECK(read(config).sliding_window == 0);
  config.erase("use_sliding_window");
  config.erase("sliding_window");
  CHECK(read(config).unknown_keys.empty());
}

TEST_CASE("rope_parameters.rope_theta wins over rope_theta and must be sound") {
  json config = released_config();
  config["rope_scaling"] = nullptr;
  config["rope_parameters"] = {{"rope_theta", 5000}, {"rope_type", "default"}};
  CHECK(read(config).rope_theta == 5000.0);
  config.erase("rope_theta");
  CHECK(read(config).rope_theta == 5000.0);
  config["rope_parameters"] = {{"rope_type", "default"}};
  test::check_refused(ErrorCode::config, {"rope_theta: missing"}, [&] { read(config); });
  check_key("rope_parameters", {{"rope_type", "linear"}}, "expected \"default\"", "rope_parameters.rope_type");
  check_key("rope_parameters", {{"rope_theta", "1e4"}}, "expected a finite number", "rope_parameters.rope_theta");
  check_key("rope_parameters", {{"rope_theta", 0.5}}, "below 1", "rope_parameters.rope_theta");
  check_key("rope_parameters", 7, "is no object", "rope_parameters");
  check_key("rope_theta", 0, "below 1");
}

TEST_CASE("an eps outside (0, 1) is refused") {
  for (const double eps : {0.0, -1e-6, 1.0, 1e-46}) {  // the last is 0 as a float32
    check_key("rms_norm_eps", eps, "expected a float32 between 0 and 1");
  }
  check_key("rms_norm_eps", "1e-6", "expected a finite number");
}

TEST_CASE("a quantization_config other than FP8 in blocks of 128 with dynamic activations is refused") {
  check_quantization("weight_block_size", {64, 64}, "[64,64], expected [128,128]");
  check_quantization("weight_block_size", {128, 128, 128}, "expected [128,128]");
  check_quantization("weight_block_size", 128, "128, expected [128,128]");
  check_quantization("quant_method", "awq", "\"awq\", expected \"fp8\"");
  check_quantization("activation_scheme", "static", "\"static\", expected \"dynamic\"");
  check_quantization("modules_to_not_convert", {1}, "1 in a list of strings");
  check_key("quantization_config", json::object(), "missing", "quantization_config.quant_method");
  check_key("quantization_config", "fp8", "is no object", "quantization_config");
}

TEST_CASE("a config.json that is no object is refused") {
  test::check_refused(ErrorCode::config, {"DIR/config.json: is no object"}, [] { read(json::array()); });
}

}  // namespace
}  // namespace kalibri::checkpoint
