// What each kind of arithmetic rounds, seen from outside: which tensors of a run hold bf16 numbers alone, and which
// must not.
#include <set>

#include "engine/kernels/codec.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"

using namespace kalibri;
using test::LoadedModel;

namespace {

struct Run {
  test::KeepingSink taps;
  std::vector<float> logits;
};

std::vector<std::int32_t> some_ids() {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 40; ++i) ids.push_back(i * i * 7 % 150);
  return ids;
}

std::unique_ptr<Run> run(const std::filesystem::path& directory, const char* precision) {
  const LoadedModel loaded(directory, precision);
  ThreadPool pool(2);
  auto result = std::make_unique<Run>();
  result->logits = test::run_in_cuts(loaded.model, pool, some_ids(), {23, 1}, 8, &result->taps);
  return result;
}

template <typename T>
bool is_bf16(const std::vector<T>& values) {
  for (const T value : values) {
    float rounded = static_cast<float>(value);
    kernels::round_to_bf16(&rounded, 1);
    if (static_cast<T>(rounded) != value) return false;
  }
  return true;
}

/// Names of the float tensors that hold bf16 numbers alone in every layer; "logits" among them.
std::set<std::string> rounded_tensors(const Run& run) {
  std::set<std::string> rounded, exact;
  for (const auto& [key, values] : run.taps.all()) (is_bf16(values) ? rounded : exact).insert(key.second);
  for (const std::string& name : exact) rounded.erase(name);
  if (is_bf16(run.logits)) rounded.insert("logits");
  return rounded;
}

std::set<std::string> without(std::set<std::string> names, const std::set<std::string>& others) {
  for (const std::string& name : others) names.erase(name);
  return names;
}

std::set<std::string> all_names(const Run& run) {
  std::set<std::string> names = {"logits"};
  for (const auto& [key, values] : run.taps.all()) names.insert(key.second);
  return names;
}

// Never rounded, whatever the arithmetic: scores that choose, and integers (small ones are bf16 numbers by chance).
const std::set<std::string> kNeverRounded = {"router_logits", "router_gap", "index_scores"};
const std::set<std::string> kIntegers = {"expert_ids", "selected_blocks", "ngram_rows"};

}  // namespace

TEST_CASE("Each arithmetic rounds what it says and nothing else") {
  for (const char* set : {"kolibri1-k1-fp8", "qwen4-exp-t2"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const auto rounded_in = [&](const char* precision) {
      return without(rounded_tensors(*run(*directory, precision)), kIntegers);
    };
    const auto native = run(*directory, "native");
    const std::set<std::string> all = without(without(all_names(*native), kIntegers), kNeverRounded);
    INFO(set);
    // Of a golden model stored in bf16 some tensor may be bf16 as it is: an embedding row.
    const std::set<std::string> by_nature = without(rounded_tensors(*native), kIntegers);
    CHECK(without(by_nature, {"ngram_embedding"}).empty());

    CHECK(rounded_in("bf16") == all);
    CHECK(rounded_in("compute=bf16,dense=bf16,experts=bf16,embed=bf16,head=bf16") ==
          without(all, {"residual", "post_attention"}));
    CHECK(rounded_in("compute=bf16-served,residual=bf16") == without(all, {"expert_weights", "logits"}));
    CHECK(rounded_in("production") == without(all, {"expert_weights", "logits", "residual", "post_attention"}));
    CHECK(without(rounded_in("residual=bf16"), by_nature) ==
          without(std::set<std::string>{"residual", "post_attention"}, std::string(set) == "qwen4-exp-t2"
                                                                           ? std::set<std::string>{"post_attention"}
                                                                           : std::set<std::string>{}));
    CHECK(without(rounded_in("kv=bf16"), by_nature) == std::set<std::string>{"k", "v"});
  }
}

TEST_CASE("Each key of the arithmetic changes the logits, and no two of its values give the same") {
  for (const char* set : {"kolibri1-k1-fp8", "qwen4-exp-t1-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const std::vector<std::vector<const char*>> values = {
        {"native", "compute=bf16", "compute=bf16-served"},
        {"native", "residual=bf16", "residual=bf16-fused"},
        {"native", "activations=fp8-dynamic"},
        {"native", "kv=bf16"},
        {"dense=affine:8:32", "dense=affine:8:32,activations=int16", "dense=affine:8:32,activations=int8"}};
    for (const auto& key : values) {
      std::vector<std::vector<float>> logits;
      for (const char* precision : key) logits.push_back(run(*directory, precision)->logits);
      for (std::size_t a = 0; a < logits.size(); ++a) {
        for (std::size_t b = a + 1; b < logits.size(); ++b) {
          INFO(set << ": " << key[a] << " and " << key[b]);
          CHECK((logits[a] != logits[b]));
        }
      }
    }
    // What an activation format does not apply to, it leaves alone: there are no affine weights, and no FP8 ones.
    CHECK((run(*directory, "activations=int16")->logits == run(*directory, "native")->logits));
    CHECK((run(*directory, "exact")->logits ==
           run(*directory, "dense=f32,experts=f32,embed=f32,head=f32,activations=fp8-dynamic")->logits));
  }
}
