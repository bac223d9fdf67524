// MLX directories run as they are: against the upstream implementation's outputs on the same weights, and bit for bit
// against the same weights expanded, cut otherwise, and stored at odd addresses.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"

using namespace kalibri;
using test::KeepingSink;
using test::LoadedModel;

namespace {

// What an fp32 implementation was asked to keep.
constexpr double kRel = 1e-5;
constexpr double kMaxAbsLogit = 2e-4;

using Golden = std::map<std::string, fixtures::StoredTensor>;

std::vector<std::int32_t> input_ids(const Golden& golden) {
  const std::vector<std::int64_t> ids = golden.at("input_ids").integers();
  return {ids.begin(), ids.end()};
}

/// Largest over rows of |a_t - b_t| / |b_t|; NaN where there is one.
double rel_token_max(const std::vector<double>& a, const std::vector<double>& b, std::size_t width) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t first = 0; first < a.size(); first += width) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = first; i < first + width; ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    const double rel = std::sqrt(difference / norm);
    most = rel <= most ? most : rel;
  }
  return most;
}

struct Outcome {
  double worst_residual = 0;
  double worst_logit = 0;
  bool same_experts = true;
  std::vector<float> logits;
};

Outcome run(const LoadedModel& loaded, const Golden& golden) {
  const model::ModelInfo& info = loaded.model.info();
  ThreadPool pool(2);
  KeepingSink sink;
  Outcome outcome;
  outcome.logits = test::run_in_cuts(loaded.model, pool, input_ids(golden), {24}, 512, &sink);
  for (int layer = 0; layer < info.n_layers; ++layer) {
    const std::string prefix = "layer_0" + std::to_string(layer) + ".";
    const double rel = rel_token_max(sink.get(layer, "residual"), golden.at(prefix + "residual").values(),
                                     static_cast<std::size_t>(info.hidden_size));
    outcome.worst_residual = rel <= outcome.worst_residual ? outcome.worst_residual : rel;
    outcome.same_experts &= sink.get(layer, "expert_ids") == golden.at(prefix + "expert_ids").values();
  }
  const std::vector<double> expected = golden.at("logits").values();
  REQUIRE(outcome.logits.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(static_cast<double>(outcome.logits[i]) - expected[i]);
    outcome.worst_logit = error <= outcome.worst_logit ? outcome.worst_logit : error;
  }
  return outcome;
}

}  // namespace

TEST_CASE("The engine runs MLX directories, with the upstream implementation's outputs and experts") {
  for (const std::string set : {"mlx-affine/kolibri1-k1-mlx-4bit", "mlx-affine/kolibri1-k1-mlx-mixed"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory) KALIBRI_SKIP("golden set " + set + " is not there");
    INFO(set);
    const Golden golden = fixtures::read_safetensors(*directory / "golden.safetensors");
    const LoadedModel loaded(*directory, "native");
    const Outcome native = run(loaded, golden);
    CHECK(native.worst_residual <= kRel);
    CHECK(native.worst_logit <= kMaxAbsLogit);
    CHECK(native.same_experts);
    WARN("measured: residual rel_token_max " << native.worst_residual << ", logits max abs " << native.worst_logit);

    // The product is defined by the decoded weights, so expanding them beforehand, or going token by token, is the
    // same.
    const LoadedModel expanded(*directory, "exact");
    CHECK(run(expanded, golden).logits == native.logits);
    ThreadPool pool(1);
    for (const std::int64_t cut : {1, 7}) {
      CHECK(test::run_in_cuts(loaded.model, pool, input_ids(golden), {cut}, 5) == native.logits);
    }
  }
}

TEST_CASE("An MLX directory whose tensors lie at odd addresses gives the same bits") {
  const auto directory = fixtures::find_golden("mlx-affine/kolibri1-k1-mlx-mixed");
  if (!directory) KALIBRI_SKIP("golden set mlx-affine is not there");
  const Golden golden = fixtures::read_safetensors(*directory / "golden.safetensors");
  const fixtures::CheckpointCopy copy(*directory);
  const std::string file = fixtures::read_file(copy.weights());
  std::uint64_t n_header = 0;
  std::memcpy(&n_header, file.data(), sizeof n_header);
  std::string header = file.substr(8, n_header);
  header += header.size() % 2 == 0 ? " " : "  ";
  fixtures::write_file(copy.weights(), fixtures::raw_safetensors(header, file.substr(8 + n_header)));
  const LoadedModel odd(copy.directory(), "native");
  REQUIRE(reinterpret_cast<std::uintptr_t>(odd.checkpoint.find("lm_head.scales")->bytes.data()) % 2 == 1);
  CHECK(run(odd, golden).logits == run(LoadedModel(*directory, "native"), golden).logits);
}

TEST_CASE("One changed bit in a scale, a bias or a code of an MLX directory leaves the golden bounds") {
  const auto directory = fixtures::find_golden("mlx-affine/kolibri1-k1-mlx-mixed");
  if (!directory) KALIBRI_SKIP("golden set mlx-affine is not there");
  const Golden golden = fixtures::read_safetensors(*directory / "golden.safetensors");
  for (const char* part : {"scales", "biases", "weight"}) {
    INFO(part);
    const fixtures::CheckpointCopy copy(*directory);
    copy.edit_byte(std::string("model.layers.1.self_attn.v_proj.") + part, 0,
                   [](unsigned char byte) { return byte ^ 0x40; });
    const Outcome outcome = run(LoadedModel(copy.directory(), "native"), golden);
    CHECK_FALSE(outcome.worst_residual <= kRel);
  }
}
