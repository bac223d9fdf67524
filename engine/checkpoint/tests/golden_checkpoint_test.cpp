// The golden checkpoints, read by the engine and by the tests' own reader: every tensor, value for value.
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/kolibri1_config.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"

namespace kalibri::checkpoint {
namespace {

constexpr const char* kSets[] = {"kolibri1-k1", "kolibri1-k1-fp8", "kolibri1-k2", "kolibri1-k2-fp8"};

/// Elements [n_rows, n_cols] of a view, widened by the test's own rules (e4m3 times scale for FP8).
std::vector<double> elements(const kernels::MatrixView& view) {
  std::vector<double> values;
  const auto* bytes = static_cast<const unsigned char*>(view.data);
  const std::int64_t scale_cols = (view.n_cols + 127) / 128;
  for (std::int64_t i = 0; i < view.n_rows; ++i) {
    for (std::int64_t j = 0; j < view.n_cols; ++j) {
      const std::int64_t at = i * view.n_cols + j;
      if (view.format == kernels::Format::f32) {
        float value = 0;
        std::memcpy(&value, bytes + 4 * at, 4);
        values.push_back(static_cast<double>(value));
      } else if (view.format == kernels::Format::bf16) {
        const auto bits = static_cast<std::uint32_t>(bytes[2 * at] | bytes[2 * at + 1] << 8) << 16;
        values.push_back(static_cast<double>(std::bit_cast<float>(bits)));
      } else {
        const unsigned code = bytes[at];
        const int exponent = static_cast<int>(code >> 3 & 15U);
        const double mantissa = code & 7U;
        const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
        values.push_back((code & 0x80U ? -size : size) *
                         static_cast<double>(view.scale_inv[i / 128 * scale_cols + j / 128]));
      }
    }
  }
  return values;
}

TEST_CASE("every tensor of the golden checkpoints reads as the tests' own reader has it") {
  for (const char* set : kSets) {
    const auto directory = fixtures::find_golden(set);
    if (!directory) KALIBRI_SKIP(std::string("golden set missing: ") + set);
    const Checkpoint checkpoint = Checkpoint::open(*directory);
    const auto truth = fixtures::read_safetensors(*directory / "model.safetensors");
    REQUIRE(checkpoint.tensors().size() == truth.size());
    bool saw_fp8 = false;
    for (const auto& [name, stored] : truth) {
      INFO(set << ": " << name);
      if (name.ends_with("_scale_inv")) continue;
      if (stored.shape.size() == 1) {
        const std::vector<float> values = checkpoint.vector(name, stored.shape[0]);
        CHECK(std::vector<double>(values.begin(), values.end()) == stored.values());
        continue;
      }
      const kernels::MatrixView view = checkpoint.matrix(name, stored.shape[0], stored.shape[1], true);
      std::vector<double> expected = stored.values();
      if (stored.dtype == "F8_E4M3") {
        saw_fp8 = true;
        const auto& scale = truth.at(name + "_scale_inv");
        const std::vector<double> scales = scale.values();
        for (std::int64_t at = 0; at < view.n_rows * view.n_cols; ++at) {
          const std::int64_t block = at / view.n_cols / 128 * scale.shape[1] + at % view.n_cols / 128;
          expected[static_cast<std::size_t>(at)] *= scales[static_cast<std::size_t>(block)];
        }
      }
      CHECK(elements(view) == expected);
    }
    CHECK(saw_fp8 == std::string(set).ends_with("-fp8"));
  }
}

TEST_CASE("the golden configurations read with the values of their meta data and without unknown keys") {
  const auto directory = fixtures::find_golden("kolibri1-k1-fp8");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1-fp8 missing");
  const Checkpoint checkpoint = Checkpoint::open(*directory);
  const Kolibri1Config config = Kolibri1Config::from_json(checkpoint.config(), "config.json");
  CHECK(config.hidden_size == 128);
  CHECK(config.num_hidden_layers == 5);
  CHECK(config.num_attention_heads == 6);
  CHECK(config.num_key_value_heads == 2);
  CHECK(config.head_dim == 32);
  CHECK(config.max_position_embeddings == 4096);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.vocab_size == 256);
  CHECK(config.rope_theta == 10000.0);
  CHECK(config.num_experts == 16);
  CHECK(config.num_experts_per_tok == 3);
  CHECK(config.moe_intermediate_size == 64);
  CHECK(config.shared_expert_intermediate_size == 192);
  CHECK(config.sliding_window == 7);
  CHECK(config.layer_is_sliding == std::vector<bool>{true, true, true, true, false});
  CHECK(config.has_quantization_config);
  CHECK(config.modules_to_not_convert.size() == 5);
  CHECK(config.unknown_keys.empty());
}

}  // namespace
}  // namespace kalibri::checkpoint
