// MLX directories of Kolibri 1 against the upstream implementation on the same numbers, and that this can fail.
#include <fmt/format.h>

#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "oracle/dump/names.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using fixtures::CheckpointCopy;
using nlohmann::json;

std::string joined(const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, "\n")); }

TEST_CASE("fp32 and fp64 runs of an MLX directory reproduce the upstream on its dequantised weights") {
  const std::string name = GENERATE(from_range(kMlxGoldenSets));
  const char* dtype = GENERATE("f32", "f64");
  const auto set = open_golden_set(name);
  if (!set) KALIBRI_SKIP(name + ": no golden data");
  std::string summary;
  CHECK(joined(complaints_f32(*set, run_golden(*set, set->checkpoint, {"--dtype", dtype}), &summary)) == "");
  fmt::print("{} {}: {}\n", name, dtype, summary);
}

/// Reorders the experts of every stack as the texts of their numbers are ordered: 0, 1, 10, 11, …, 2, 3, …
void order_as_texts(const CheckpointCopy& copy, std::int64_t n_experts) {
  std::vector<std::string> order;
  for (std::int64_t e = 0; e < n_experts; ++e) order.push_back(std::to_string(e));
  std::sort(order.begin(), order.end());
  for (const auto& [name, tensor] : fixtures::read_safetensors(copy.weights())) {
    if (name.find("switch_mlp") == std::string::npos) continue;
    const std::size_t n_bytes = tensor.bytes.size() / order.size();
    std::vector<std::byte> bytes;
    for (const std::string& expert : order) {
      const auto begin = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(std::stoul(expert) * n_bytes);
      bytes.insert(bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(n_bytes));
    }
    fixtures::patch_tensor(copy.weights(), name, 0, bytes);
  }
}

TEST_CASE("an MLX directory read wrongly is noticed") {
  const auto set = open_golden_set("mlx-affine/kolibri1-k1-mlx-mixed");
  if (!set) KALIBRI_SKIP("no golden data");
  const auto check_seen = [&](const char* what, const std::function<void(const CheckpointCopy&)>& damage,
                              const char* first) {
    CAPTURE(what);
    const CheckpointCopy copy(set->checkpoint);
    damage(copy);
    const std::vector<std::string> complaints = complaints_f32(*set, run_golden(*set, copy.directory(), {}));
    REQUIRE_FALSE(complaints.empty());
    CHECK_THAT(complaints.front(), ContainsSubstring(first));
  };
  check_seen(
      "experts in the order of texts", [](const auto& copy) { order_as_texts(copy, 16); }, "layers/00/residual");
  check_seen(
      "gate and up exchanged",
      [](const auto& copy) {
        copy.edit_header([](json& h) {
          for (const char* part : {".weight", ".scales", ".biases"}) {
            const std::string stack = "model.layers.1.mlp.switch_mlp.";
            std::swap(h[stack + "gate_proj" + part], h[stack + "up_proj" + part]);
          }
        });
      },
      "layers/01/residual");
  check_seen(
      "one bit of a code",
      [](const auto& copy) {
        copy.edit_byte("model.layers.2.self_attn.o_proj.weight", 0, [](unsigned char b) { return b ^ 0x80; });
      },
      "layers/02/residual");
  check_seen(
      "one bit of the scale of an embedding",
      [&](const auto& copy) {
        const auto byte = static_cast<std::size_t>(set->ids("input_ids").front()) * 4;  // two groups of bf16 a row
        copy.edit_byte("model.embed_tokens.scales", byte, [](unsigned char b) { return b ^ 1; });
      },
      "embedding");
}

/// The datasets of a run of k1, to be compared bit by bit.
std::vector<std::vector<double>> all_of(const dump::Reader& dump, std::int64_t n_layers) {
  std::vector<std::vector<double>> all = {read_all(dump, "embedding"), read_all(dump, "logits")};
  for (std::int64_t layer = 0; layer < n_layers; ++layer) {
    all.push_back(read_all(dump, dump::layer_path(layer, "residual")));
    all.push_back(read_all(dump, dump::layer_path(layer, "router_logits")));
  }
  return all;
}

TEST_CASE("a checkpoint quantised in a run gives the bits of its converted directory") {
  const auto source = open_golden_set("kolibri1-k1-fp8");
  const auto mixed = open_golden_set("mlx-affine/kolibri1-k1-mlx-mixed");
  const auto four = open_golden_set("mlx-affine/kolibri1-k1-mlx-4bit");
  if (!source || !mixed || !four) KALIBRI_SKIP("no golden data");
  const auto run = [&](const GoldenSet& set, const std::string& precision) {
    return all_of(run_golden(set, set.checkpoint, {"--precision", precision}), set.n_layers);
  };
  const std::string all_four = "dense=affine:4:64,experts=affine:4:64,embed=affine:4:64,head=affine:4:64";
  CHECK(run(*source, "mixed-4-8") == run(*mixed, "native"));
  CHECK(run(*source, all_four) == run(*four, "native"));
  CHECK(run(*source, "mixed-4-8") != run(*four, "native"));
  CHECK(run(*source, all_four + ":gpu") != run(*four, "native"));
  // What is stored packed is what was quantised: quantising it again is another model, rounding it to bf16 as well.
  CHECK(run(*mixed, "exact") == run(*mixed, "native"));
  const dump::Reader bf16 = run_golden(*mixed, mixed->checkpoint, {"--precision", "dense=bf16,experts=bf16"});
  CHECK_FALSE(complaints_f32(*mixed, bf16).empty());
  CHECK(bf16.header().precision == "dense=bf16,experts=bf16");
}

TEST_CASE("directories whose two layouts or whose router contradict each other are refused") {
  const auto set = open_golden_set("mlx-affine/kolibri1-k1-mlx-4bit");
  if (!set) KALIBRI_SKIP("no golden data");
  const auto check_refused = [&](const std::function<void(json&)>& damage, const char* text) {
    const CheckpointCopy copy(set->checkpoint);
    copy.edit_header(damage);
    const fixtures::TempDirectory folder;
    const fixtures::RunResult result = run_reference(copy.directory(), {{"a", {1}}}, folder.path() / "out.h5");
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, ContainsSubstring(text));
  };
  const auto rename = [](json& h, const std::string& from, const std::string& to) {
    h[to] = h.at(from), h.erase(from);
  };
  const std::string mlp = "model.layers.3.mlp.";
  check_refused([&](json& h) { rename(h, mlp + "switch_mlp.up_proj.scales", mlp + "experts.0.scales"); },
                "the experts are there twice");
  check_refused([&](json& h) { rename(h, mlp + "switch_mlp.up_proj.scales", mlp + "switch_mlp.scales"); },
                "model.layers.3.mlp.switch_mlp.up_proj.scales: missing");
  check_refused([&](json& h) { rename(h, mlp + "switch_mlp.up_proj.scales", mlp + "gate.scales"); },
                "model.layers.3.mlp.gate.weight: shape [16, 128], expected [16, 16]");
  check_refused(
      [&](json& h) {
        h.at(mlp + "switch_mlp.up_proj.weight")["shape"] = {64, 16, 16};
      },
      "switch_mlp.up_proj.weight: shape [64, 16, 16], expected [16, 64, 16]");
}

}  // namespace
}  // namespace kalibri::reference::test
