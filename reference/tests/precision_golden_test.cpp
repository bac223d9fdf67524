// What a precision rounds and what it leaves alone, seen in the dumps of golden sets.
#include <algorithm>
#include <set>

#include "fixtures/catch.hpp"
#include "oracle/dump/names.hpp"
#include "reference/number_formats.hpp"
#include "reference/tests/difference.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

float rounded(double x) { return round_to_bf16(static_cast<float>(x)); }

bool is_bf16(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double x) { return round_to_bf16(x) == x; });
}

/// A golden set's dump in a precision, with all taps.
class Run {
 public:
  Run(const GoldenSet& set, const std::string& precision, const std::string& dtype = "f32")
      : dump_(run_golden(set, set.checkpoint, {"--precision", precision, "--taps", "all", "--dtype", dtype})) {}

  [[nodiscard]] std::vector<double> values(const std::string& path) const { return read_all(dump_, path); }
  [[nodiscard]] std::vector<double> of_layer(std::int64_t layer, const char* name) const {
    return values(dump::layer_path(layer, name));
  }
  /// The names of floating tensors of layers that hold other numbers than bf16's.
  [[nodiscard]] std::set<std::string> not_bf16(std::int64_t n_layers, const std::vector<std::string>& names) const {
    std::set<std::string> found;
    for (const std::string& name : names) {
      for (std::int64_t layer = 0; layer < n_layers; ++layer) {
        const std::string path = dump::layer_path(layer, name);
        if (dump_.find("golden", path) && !is_bf16(values(path))) found.insert(name);
      }
    }
    return found;
  }
  [[nodiscard]] const dump::Reader& dump() const { return dump_; }

 private:
  dump::Reader dump_;
};

const std::vector<std::string> kKolibri1Tensors = {
    "attention_context", "attention_out", "expert_weights", "k",          "moe_out", "post_attention", "pre_mlp", "q",
    "residual",          "routed_out",    "router_logits",  "shared_out", "v"};
const std::vector<std::string> kQwen4ExpTensors = {"attention_context",
                                                   "attn_inject",
                                                   "attn_mixed",
                                                   "delta_core",
                                                   "expert_weights",
                                                   "index_scores",
                                                   "k",
                                                   "mixer_out",
                                                   "mlp_inject",
                                                   "mlp_mixed",
                                                   "moe_out",
                                                   "ngram_embedding",
                                                   "ple_out",
                                                   "q",
                                                   "residual",
                                                   "routed_out",
                                                   "router_logits",
                                                   "shared_out",
                                                   "v"};

using Names = std::set<std::string>;

TEST_CASE("compute=bf16 rounds every result but the scores that choose") {
  const auto k1 = open_golden_set("kolibri1-k1-fp8");
  const auto t2 = open_golden_set("qwen4-exp-t2");
  if (!k1 || !t2) KALIBRI_SKIP("no golden data");
  const Run kolibri(*k1, "bf16");
  CHECK(kolibri.dump().header().precision == "bf16");
  CHECK(kolibri.not_bf16(k1->n_layers, kKolibri1Tensors) == Names{"router_logits"});
  CHECK(is_bf16(kolibri.values("embedding")));
  CHECK(is_bf16(kolibri.values("final_norm")));
  CHECK(is_bf16(kolibri.values("logits")));
  const Run qwen(*t2, "bf16");
  CHECK(qwen.not_bf16(8, kQwen4ExpTensors) == Names{"index_scores", "router_logits"});
  CHECK(is_bf16(qwen.values("logits")));
  // The combination is rounded once more when the shared expert joins it.
  const std::vector<double> routed = kolibri.of_layer(0, "routed_out");
  const std::vector<double> shared = kolibri.of_layer(0, "shared_out");
  const std::vector<double> both = kolibri.of_layer(0, "moe_out");
  for (std::size_t i = 0; i < both.size(); ++i) REQUIRE(static_cast<double>(rounded(routed[i] + shared[i])) == both[i]);
}

TEST_CASE("compute=bf16-served leaves expert weights and logits in f32") {
  const auto k1 = open_golden_set("kolibri1-k1-fp8");
  const auto t2 = open_golden_set("qwen4-exp-t2");
  if (!k1 || !t2) KALIBRI_SKIP("no golden data");
  const Run kolibri(*k1, "compute=bf16-served,residual=bf16,kv=bf16");
  CHECK(kolibri.not_bf16(k1->n_layers, kKolibri1Tensors) == Names{"expert_weights", "router_logits"});
  CHECK(is_bf16(kolibri.values("final_norm")));
  CHECK_FALSE(is_bf16(kolibri.values("logits")));
  const Run qwen(*t2, "compute=bf16-served,residual=bf16,kv=bf16");
  CHECK(qwen.not_bf16(8, kQwen4ExpTensors) == Names{"expert_weights", "index_scores", "router_logits"});
}

TEST_CASE("residual=bf16-fused hands on the unrounded sum, and adds to its rounded value") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  // Under compute=bf16 a branch is bf16. So h = R(s) + branch for some bf16 branch; of the unrounded s there is none.
  const Run run(*set, "compute=bf16,residual=bf16-fused");
  const std::vector<double> s = run.of_layer(1, "residual");
  const std::vector<double> h = run.of_layer(2, "post_attention");
  CHECK_FALSE(is_bf16(s));
  CHECK_FALSE(is_bf16(h));
  const auto count_sums = [&](const auto& value_of) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < h.size(); ++i) {
      const float addend = value_of(s[i]);
      const auto sum = static_cast<float>(h[i]);
      if (addend + round_to_bf16(sum - addend) == sum) ++n;
    }
    return n;
  };
  CHECK(count_sums(rounded) == h.size());
  CHECK(count_sums([](double x) { return static_cast<float>(x); }) < h.size());
  // The norm that follows reads the sum itself: rounding the sums as well gives other results.
  CHECK(Run(*set, "compute=bf16,residual=bf16").of_layer(0, "pre_mlp") != run.of_layer(0, "pre_mlp"));
}

TEST_CASE("each key of a precision rounds its own tensors and no others") {
  const auto set = open_golden_set("kolibri1-k1");
  if (!set) KALIBRI_SKIP("no golden data");
  const Names all(kKolibri1Tensors.begin(), kKolibri1Tensors.end());
  CHECK(Run(*set, "native").not_bf16(set->n_layers, kKolibri1Tensors) == all);
  const auto without = [&](const Names& names) {
    Names left;
    std::ranges::set_difference(all, names, std::inserter(left, left.end()));
    return left;
  };
  CHECK(Run(*set, "kv=bf16").not_bf16(set->n_layers, kKolibri1Tensors) == without({"k", "v"}));
  CHECK(Run(*set, "residual=bf16").not_bf16(set->n_layers, kKolibri1Tensors) ==
        without({"residual", "post_attention"}));
}

TEST_CASE("in f64 a precision rounds the same tensors to the same formats, and is near itself in f32") {
  const auto k1 = open_golden_set("kolibri1-k1-fp8");
  const auto t2 = open_golden_set("qwen4-exp-t2");
  if (!k1 || !t2) KALIBRI_SKIP("no golden data");
  const Run kolibri(*k1, "bf16", "f64");
  CHECK(kolibri.dump().find("golden", "logits")->type == dump::ElementType::f64);
  CHECK(kolibri.not_bf16(k1->n_layers, kKolibri1Tensors) == Names{"router_logits"});
  CHECK(is_bf16(kolibri.values("logits")));
  CHECK(Run(*t2, "bf16", "f64").not_bf16(8, kQwen4ExpTensors) == Names{"index_scores", "router_logits"});
  const auto q = [&](const std::string& precision, const std::string& dtype) {
    return Run(*k1, precision, dtype).of_layer(0, "q");
  };
  for (const std::string precision :
       {"activations=fp8-dynamic", "dense=affine:8:32,activations=int16", "dense=affine:8:32,activations=int8"}) {
    CAPTURE(precision);
    const std::string weights = precision.substr(0, precision.find("activations"));
    const std::vector<double> rounds = q(precision, "f64");
    const std::vector<double> plain = q(weights.empty() ? "native" : weights.substr(0, weights.size() - 1), "f64");
    CHECK(rounds != q(precision, "f32"));
    CHECK(difference(rounds, q(precision, "f32"), 1).rel < difference(rounds, plain, 1).rel / 4);
  }
}

TEST_CASE("activations are quantised in front of FP8 weights only") {
  const auto bf16 = open_golden_set("kolibri1-k1");
  const auto fp8 = open_golden_set("kolibri1-k1-fp8");
  if (!bf16 || !fp8) KALIBRI_SKIP("no golden data");
  const auto residual = [](const GoldenSet& set, const std::string& precision) {
    return Run(set, precision).of_layer(0, "residual");
  };
  CHECK(residual(*bf16, "activations=fp8-dynamic") == residual(*bf16, "native"));
  CHECK(residual(*fp8, "activations=fp8-dynamic") != residual(*fp8, "native"));
  CHECK(residual(*fp8, "dense=f32,experts=f32,activations=fp8-dynamic") == residual(*fp8, "native"));
  const Run dense(*fp8, "experts=f32,activations=fp8-dynamic");
  CHECK(dense.of_layer(0, "q") != Run(*fp8, "native").of_layer(0, "q"));
  CHECK(Run(*fp8, "dense=f32,activations=fp8-dynamic").of_layer(0, "q") == Run(*fp8, "native").of_layer(0, "q"));
}

}  // namespace
}  // namespace kalibri::reference::test
