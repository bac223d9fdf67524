#include "reference/tests/golden_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fixtures/golden.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/shard.hpp"
#include "oracle/dump/names.hpp"
#include "reference/tests/difference.hpp"

namespace kalibri::reference::test {
namespace {

// The acceptance of an fp32 implementation on these sets; an fp64 run repeats the golden
// fp64 run but for the order of its sums.
constexpr double kRel = 1e-5;
constexpr double kLogitsMaxAbs = 2e-4;
constexpr double kKlMean = 1e-9;
constexpr double kF64RelToMax = 1e-9;

template <typename Stored>
std::vector<Stored> elements(const TensorView& view) {
  std::vector<Stored> values(view.bytes.size() / sizeof(Stored));
  std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
  return values;
}

/// Collects complaints, and the largest value of each figure.
class Judge {
 public:
  void at_most(const std::string& where, const std::string& figure, double value, double bound) {
    if (!(value <= bound))
      complaints_.push_back(fmt::format("{}: {} {:.3g} is above {:.3g}", where, figure, value, bound));
    double& largest = largest_[figure];
    largest = std::max(largest, value);
  }
  void equal(const std::string& where, bool is_equal) {
    if (!is_equal) complaints_.push_back(where + ": differs");
  }
  std::vector<std::string> finish(std::string* summary) const {
    if (summary != nullptr) {
      for (const auto& [figure, value] : largest_) *summary += fmt::format("{} {:.2g}  ", figure, value);
    }
    return complaints_;
  }

 private:
  std::vector<std::string> complaints_;
  std::map<std::string, double> largest_;
};

std::string golden_name(std::int64_t layer, const char* tensor) { return fmt::format("layer_{:02}.{}", layer, tensor); }

}  // namespace

const std::vector<std::string> kGoldenSets = {"kolibri1-k1", "kolibri1-k1-fp8", "kolibri1-k2", "kolibri1-k2-fp8",
                                              "kolibri1-k2-sharded"};
const std::vector<std::string> kMlxGoldenSets = {"mlx-affine/kolibri1-k1-mlx-4bit", "mlx-affine/kolibri1-k1-mlx-mixed"};

std::vector<double> GoldenSet::values(const std::string& name) const {
  const TensorView& view = golden.tensors().at(name);
  if (view.dtype == "F64") return elements<double>(view);
  if (view.dtype != "F32") throw std::runtime_error(name + ": is no F32 or F64");
  const std::vector<float> narrow = elements<float>(view);
  return {narrow.begin(), narrow.end()};
}

std::int64_t GoldenSet::width(const std::string& name) const { return golden.tensors().at(name).shape.back(); }

std::vector<std::int64_t> GoldenSet::ids(const std::string& name) const {
  const TensorView& view = golden.tensors().at(name);
  if (view.dtype != "I64") throw std::runtime_error(name + ": is no I64");
  return elements<std::int64_t>(view);
}

std::unique_ptr<GoldenSet> open_golden_set(const std::string& name) {
  const bool sharded = name.ends_with("-sharded");
  const auto directory = fixtures::find_golden(sharded ? name.substr(0, name.size() - 8) : name);
  if (!directory) return nullptr;
  std::unique_ptr<GoldenSet> set(new GoldenSet{*directory, SafetensorsFile(*directory / "golden.safetensors")});
  while (set->golden.tensors().contains(golden_name(set->n_layers, "residual"))) ++set->n_layers;
  if (sharded) {
    set->checkpoint = set->scratch.path() / "sharded";
    fixtures::shard_checkpoint(*directory, set->checkpoint, 3);
  }
  return set;
}

fixtures::RunResult run_reference(const std::filesystem::path& checkpoint, const Tokens& tokens,
                                  const std::filesystem::path& out, const std::vector<std::string>& more) {
  const fixtures::TempDirectory scratch;
  const std::filesystem::path file = scratch.path() / "tokens.json";
  fixtures::write_file(file, nlohmann::json(tokens).dump());
  std::vector<std::string> arguments{"run", checkpoint, "--tokens", file, "-o", out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return fixtures::run_program(KALIBRI_BIN_DIR "/kalibri-reference", arguments);
}

dump::Reader run_golden(const GoldenSet& set, const std::filesystem::path& checkpoint,
                        const std::vector<std::string>& more) {
  const std::filesystem::path out = set.scratch.path() / "golden.h5";
  const fixtures::RunResult result = run_reference(checkpoint, {{"golden", set.ids("input_ids")}}, out, more);
  if (result.exit_status != 0) throw std::runtime_error("kalibri-reference failed: " + result.err);
  return dump::Reader(out);
}

std::vector<double> read_all(const dump::Reader& dump, const std::string& path) {
  const auto info = dump.find("golden", path);
  if (!info) throw std::runtime_error(path + ": is not in the dump");
  return dump.read_f64("golden", path, 0, info->shape.at(0));
}

std::vector<std::string> complaints_f32(const GoldenSet& set, const dump::Reader& dump, std::string* summary) {
  Judge judge;
  const auto compare = [&](const std::string& golden, const std::string& path, const std::string& figure) {
    const Difference d = difference(set.values(golden), read_all(dump, path), set.width(golden));
    judge.at_most(path, figure + " rel", d.rel, kRel);
    judge.at_most(path, figure + " rel_token_max", d.rel_token_max, kRel);
  };
  judge.equal("embedding", set.values("embed") == read_all(dump, "embedding"));
  for (std::int64_t layer = 0; layer < set.n_layers; ++layer) {
    const std::string ids = dump::layer_path(layer, "expert_ids");
    const std::vector<std::int64_t> golden_ids = set.ids(golden_name(layer, "expert_ids"));
    const auto n_tokens = static_cast<std::int64_t>(set.ids("input_ids").size());
    compare(golden_name(layer, "residual"), dump::layer_path(layer, "residual"), "residual");
    compare(golden_name(layer, "router_logits"), dump::layer_path(layer, "router_logits"), "router_logits");
    judge.equal(ids, golden_ids == dump.read_i64("golden", ids, 0, n_tokens));
    compare(golden_name(layer, "expert_weights"), dump::layer_path(layer, "expert_weights"), "expert_weights");
  }
  compare("final_norm", "final_norm", "final_norm");
  const std::vector<double> golden_logits = set.values("logits");
  const std::vector<double> logits = read_all(dump, "logits");
  judge.at_most("logits", "logits max_abs", difference(golden_logits, logits, set.width("logits")).max_abs,
                kLogitsMaxAbs);
  judge.at_most("logits", "kl_mean", kl_mean(golden_logits, logits, set.width("logits")), kKlMean);
  return judge.finish(summary);
}

std::vector<std::string> complaints_f64(const GoldenSet& set, const dump::Reader& dump, std::string* summary) {
  Judge judge;
  const auto compare = [&](const std::string& golden, const std::string& path, const std::string& figure) {
    judge.equal(path + ": element type", dump.find("golden", path)->type == dump::ElementType::f64);
    const Difference d = difference(set.values(golden), read_all(dump, path), set.width(golden));
    judge.at_most(path, figure + " relative to the maximum", d.rel_to_max, kF64RelToMax);
  };
  for (std::int64_t layer = 0; layer < set.n_layers; ++layer) {
    compare(golden_name(layer, "residual_f64"), dump::layer_path(layer, "residual"), "residual");
  }
  compare("logits_f64", "logits", "logits");
  return judge.finish(summary);
}

}  // namespace kalibri::reference::test
