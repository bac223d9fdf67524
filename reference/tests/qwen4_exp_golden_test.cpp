// qwen4_exp against the outputs of the upstream implementation, in fp32 and fp64; that this comparison can fail; and
// what is refused.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "oracle/dump/names.hpp"
#include "reference/mapped_file.hpp"
#include "reference/tests/difference.hpp"
#include "reference/tests/golden_set.hpp"

namespace kalibri::reference::test {
namespace {

using fixtures::CheckpointCopy;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

const std::vector<std::string> kSets = {"qwen4-exp-t1", "qwen4-exp-t1-fp8", "qwen4-exp-t2"};

// Ten times the upstream's own noise between fp32 and fp64, at least kLeastBound;
// kBoundWithoutNoise where that noise was not measured; and for an fp64 run the order of its sums.
constexpr double kNoiseFactor = 10;
constexpr double kLeastBound = 1e-5;
constexpr double kBoundWithoutNoise = 1e-4;
constexpr double kF64RelToMax = 1e-9;

struct Pair {
  const char* golden;
  const char* dump;
};
constexpr std::array kFloating = {
    Pair{"attn_inject", "attn_inject"},       Pair{"attn_mixed", "attn_mixed"},
    Pair{"block_scores", "index_scores"},     Pair{"dn_core", "delta_core"},
    Pair{"mixer_out", "mixer_out"},           Pair{"mlp_inject", "mlp_inject"},
    Pair{"mlp_mixed", "mlp_mixed"},           Pair{"moe_out", "moe_out"},
    Pair{"ple_embedding", "ngram_embedding"}, Pair{"ple_out", "ple_out"},
    Pair{"router_logits", "router_logits"},   Pair{"router_weights", "expert_weights"},
};
constexpr std::array kIntegers = {Pair{"ple_rows", "ngram_rows"}, Pair{"router_ids", "expert_ids"}};

/// The largest differences and what is beyond the bounds, in the order of the computation.
struct Outcome {
  std::vector<std::string> complaints;
  std::int64_t n_compared = 0;
  double worst_of_bound = 0;
};

double bound_of(const json& noise, const std::string& golden) {
  if (!noise.contains(golden)) return kBoundWithoutNoise;
  return std::max(kLeastBound, kNoiseFactor * noise.at(golden).at("rel_to_max").get<double>());
}

std::vector<std::int64_t> read_integers(const dump::Reader& dump, const std::string& path) {
  return dump.read_i64("golden", path, 0, dump.find("golden", path).value().shape.at(0));
}

/// The tokens that each query attends to [T, T], 0 or 1, from the selected blocks and the tail behind the last complete
/// block.
std::vector<unsigned char> attended_mask(const std::vector<std::int64_t>& blocks, std::int64_t n_tokens,
                                         std::int64_t block_size) {
  std::vector<unsigned char> mask(static_cast<std::size_t>(n_tokens * n_tokens));
  const std::int64_t n_kept = static_cast<std::int64_t>(blocks.size()) / n_tokens;
  for (std::int64_t query = 0; query < n_tokens; ++query) {
    const auto attend = [&](std::int64_t token) { mask.at(static_cast<std::size_t>(query * n_tokens + token)) = 1; };
    for (std::int64_t i = 0; i < n_kept; ++i) {
      const std::int64_t block = blocks[static_cast<std::size_t>(query * n_kept + i)];
      for (std::int64_t j = 0; block >= 0 && j < block_size; ++j) attend(block * block_size + j);
    }
    for (std::int64_t token = (query + 1) / block_size * block_size; token <= query; ++token) attend(token);
  }
  return mask;
}

Outcome compare_f32(const GoldenSet& set, const dump::Reader& dump) {
  const json meta = json::parse(read_text(set.checkpoint / "meta.json"));
  const json config = json::parse(read_text(set.checkpoint / "config.json"));
  const json& text = config.contains("text_config") ? config.at("text_config") : config;
  const json& noise = meta.at("fp32_vs_fp64").at("noise");
  Outcome outcome;
  const auto has = [&](const std::string& golden) { return set.golden.tensors().contains(golden); };
  const auto compare = [&](const std::string& golden, const std::string& path) {
    if (!has(golden)) return;
    const double bound = bound_of(noise, golden);
    const double value = difference(set.values(golden), read_all(dump, path), set.width(golden)).rel_to_max;
    if (!(value <= bound)) outcome.complaints.push_back(fmt::format("{}: {:.3g} is above {:.3g}", path, value, bound));
    outcome.worst_of_bound = std::max(outcome.worst_of_bound, value / bound);
    ++outcome.n_compared;
  };
  const auto equal = [&](const std::string& golden, const std::string& path, bool is_equal) {
    if (!is_equal) outcome.complaints.push_back(path + ": differs from " + golden);
    ++outcome.n_compared;
  };
  for (std::int64_t layer = 0; layer < text.at("num_hidden_layers").get<std::int64_t>(); ++layer) {
    const std::string prefix = fmt::format("layer{}.", layer);
    for (const Pair& pair : kIntegers) {
      const std::string path = dump::layer_path(layer, pair.dump);
      if (has(prefix + pair.golden)) {
        equal(prefix + pair.golden, path, set.ids(prefix + pair.golden) == read_integers(dump, path));
      }
    }
    for (const Pair& pair : kFloating) compare(prefix + pair.golden, dump::layer_path(layer, pair.dump));
    if (const std::string golden = prefix + "selected_mask"; has(golden)) {
      const std::string path = dump::layer_path(layer, "selected_blocks");
      const std::vector<unsigned char> mask = attended_mask(read_integers(dump, path), set.width(golden),
                                                            text.at("indexer_compress_ratio").get<std::int64_t>());
      equal(golden, path, std::ranges::equal(std::as_bytes(std::span(mask)), set.golden.tensors().at(golden).bytes));
    }
    compare(fmt::format("streams.{}", layer + 1), dump::layer_path(layer, "residual"));
  }
  compare("final_hidden", "final_norm");
  compare("logits", "logits");
  return outcome;
}

double difference_f64(const GoldenSet& set, const dump::Reader& dump) {
  CHECK(dump.find("golden", "logits")->type == dump::ElementType::f64);
  return difference(set.values("logits_f64"), read_all(dump, "logits"), set.width("logits_f64")).rel_to_max;
}

TEST_CASE("an fp32 run of qwen4_exp reproduces every tensor of every golden set") {
  const std::string name = GENERATE(from_range(kSets));
  const auto set = open_golden_set(name);
  if (!set) KALIBRI_SKIP(name + ": no golden data");
  const dump::Reader dump = run_golden(*set, set->checkpoint, {"--taps", "all"});
  CHECK(dump.header().model_type == "qwen4_exp");
  CHECK(dump.header().n_streams == 4);
  const Outcome outcome = compare_f32(*set, dump);
  CHECK(fmt::format("{}", fmt::join(outcome.complaints, "\n")) == "");
  CHECK(outcome.n_compared == std::ranges::count_if(set->golden.tensors(), [](const auto& entry) {
          const std::string& golden = entry.first;
          return golden.starts_with("layer") || (golden.starts_with("streams.") && golden != "streams.0") ||
                 golden == "final_hidden" || golden == "logits";
        }));
  fmt::print("{} f32: {} tensors, the largest difference is {:.2g} of its bound\n", name, outcome.n_compared,
             outcome.worst_of_bound);
}

TEST_CASE("an fp64 run of qwen4_exp reproduces every golden set's fp64 logits") {
  const std::string name = GENERATE(from_range(kSets));
  const auto set = open_golden_set(name);
  if (!set) KALIBRI_SKIP(name + ": no golden data");
  const double value = difference_f64(*set, run_golden(*set, set->checkpoint, {"--dtype", "f64"}));
  CHECK(value <= kF64RelToMax);
  fmt::print("{} f64: logits {:.2g} of their maximum\n", name, value);
}

TEST_CASE("one changed bit of a qwen4_exp weight is noticed in its layer and not before") {
  struct Defect {
    const char* set;
    const char* tensor;
    std::size_t byte;    // of the tensor
    unsigned char bits;  // that are turned over
    const char* layer;
  };
  // Bits of the exponent or the high mantissa: an indexer's norm, a decay, an FP8 block's scale, the table's scale.
  const Defect defect = GENERATE(values<Defect>({
      {"qwen4-exp-t2", "model.layers.3.self_attn.indexer.k_layernorm.weight", 3, 0x40, "layers/03/"},
      {"qwen4-exp-t2", "model.layers.2.linear_attn.dt_bias", 2, 0x40, "layers/02/"},
      {"qwen4-exp-t1-fp8", "model.language_model.layers.2.mlp.experts.1.down_proj.weight_scale_inv", 0, 0x40,
       "layers/02/"},
      {"qwen4-exp-t1-fp8", "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale", 0, 0x40,
       "layers/01/"},
  }));
  CAPTURE(defect.set, defect.tensor);
  const auto set = open_golden_set(defect.set);
  if (!set) KALIBRI_SKIP("no golden data");
  const CheckpointCopy copy(set->checkpoint);
  copy.edit_byte(defect.tensor, defect.byte, [&](unsigned char byte) { return byte ^ defect.bits; });
  const Outcome outcome = compare_f32(*set, run_golden(*set, copy.directory(), {"--taps", "all"}));
  REQUIRE_FALSE(outcome.complaints.empty());
  CHECK_THAT(outcome.complaints.front(), ContainsSubstring(defect.layer));
  CHECK_FALSE(difference_f64(*set, run_golden(*set, copy.directory(), {"--dtype", "f64"})) <= kF64RelToMax);
}

TEST_CASE("the greedy continuation of every qwen4_exp golden set is the upstream's, and prompts do not mix") {
  const std::string name = GENERATE(from_range(kSets));
  const auto set = open_golden_set(name);
  if (!set) KALIBRI_SKIP(name + ": no golden data");
  const json meta = json::parse(read_text(set->checkpoint / "meta.json"));
  const std::vector<std::int64_t> greedy = set->ids("greedy.ids");
  std::vector<std::int64_t> tokens = set->ids("input_ids");
  tokens.resize(meta.at("prompt_len").get<std::size_t>());
  Tokens prompts;  // each step is the grown prompt; all steps in one run
  for (std::size_t step = 0; step < greedy.size(); ++step) {
    prompts[fmt::format("step{:02}", step)] = tokens;
    tokens.push_back(greedy[step]);
  }
  const std::filesystem::path out = set->scratch.path() / "greedy.h5";
  const fixtures::RunResult result = run_reference(set->checkpoint, prompts, out, {"--positions", "last:1"});
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  const dump::Reader dump(out);
  std::vector<std::int64_t> chosen;
  for (const auto& [prompt, ids] : prompts) chosen.push_back(argmax(dump.read_f64(prompt, "logits", 0, 1)));
  CHECK(chosen == greedy);
}

TEST_CASE("a teacher-forced qwen4_exp run on a chained run's residuals repeats its numbers") {
  const auto set = open_golden_set("qwen4-exp-t2");
  if (!set) KALIBRI_SKIP("no golden data");
  const std::filesystem::path chained = set->scratch.path() / "chained.h5";
  const std::filesystem::path forced = set->scratch.path() / "forced.h5";
  const Tokens tokens{{"golden", set->ids("input_ids")}, {"single", {7}}};
  REQUIRE(run_reference(set->checkpoint, tokens, chained, {"--taps", "all"}).exit_status == 0);
  const fixtures::RunResult result = run_reference(set->checkpoint, tokens, forced,
                                                   {"--mode", "teacher-forced", "--inputs", chained, "--taps", "all"});
  INFO(result.err);
  REQUIRE(result.exit_status == 0);
  const dump::Reader a(chained);
  const dump::Reader b(forced);
  for (std::int64_t layer = 0; layer < 8; ++layer) {
    const std::string path = dump::layer_path(layer, "residual");
    CAPTURE(path);
    CHECK(read_all(a, path) == read_all(b, path));
    CHECK(a.read_f64("single", path, 0, 1) == b.read_f64("single", path, 0, 1));
  }
  CHECK(read_all(a, "logits") == read_all(b, "logits"));
  CHECK(b.find("golden", "embedding")->shape == std::vector<std::int64_t>{56, 64});
  CHECK_FALSE(a.find("single", dump::layer_path(3, "index_scores")));  // one token has no complete block
}

TEST_CASE("what qwen4_exp does not do, and tensors that contradict config.json, are refused by name") {
  struct Damage {
    const char* set;
    std::string text;  // of the message
    std::function<void(const CheckpointCopy&)> apply;
  };
  const auto config = [](auto edit) { return [edit](const CheckpointCopy& copy) { copy.edit_config(edit); }; };
  const auto header = [](auto edit) { return [edit](const CheckpointCopy& copy) { copy.edit_header(edit); }; };
  const std::string ple = "model.layers.7.ple.ple_embedding.";
  const std::string fp8_table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.";
  const char* const t2 = "qwen4-exp-t2";
  const char* const fp8 = "qwen4-exp-t1-fp8";
  const std::vector<Damage> damages{
      {t2, "'layer_types'", config([](json& c) { c["layer_types"][1] = "sliding_attention"; })},
      {t2, "'output_gate_type'", config([](json& c) { c["output_gate_type"] = "tanh"; })},
      {t2, "'hc_count'", config([](json& c) { c["hc_count"] = 1; })},
      {t2, "'num_experts_per_tok'", config([](json& c) { c["num_experts_per_tok"] = 10; })},
      {t2, "has no 'indexer_budget'", config([](json& c) { c.erase("indexer_budget"); })},
      {t2, "'indexer_budget'", config([](json& c) { c["indexer_budget"] = 13; })},
      {t2, "'indexer_kv_heads'", config([](json& c) { c["indexer_kv_heads"] = 2; })},
      {t2, "'indexer_head_dim'", config([](json& c) { c["indexer_head_dim"] = 6; })},
      {t2, "'heads_per_ngram'", config([](json& c) { c["ple_embed_dim"] = 47; })},
      {t2, "'ple_layer_ids'", config([](json& c) { c["ple_layer_ids"] = {0}; })},
      {t2, "'ple_layer_ids'", config([](json& c) { c["ple_layer_ids"] = {9}; })},
      {t2, "'eos_token_id'", config([](json& c) { c.erase("eos_token_id"); })},
      {t2, "layer_multipliers: entry 0 is", config([](json& c) { c["seed"] = 1235; })},
      {t2, ple + "ngram_heads_offsets: entry 2",
       [=](const CheckpointCopy& c) {
         c.edit_byte(ple + "ngram_heads_offsets", 16, [](unsigned char b) { return b ^ 1; });
       }},
      {t2, "lm_head.weight: missing",
       header([](json& h) { h["x"] = h.at("lm_head.weight"), h.erase("lm_head.weight"); })},
      {fp8, "weight_block_size", config([](json& c) { c.erase("quantization_config"); })},
      {fp8, "3 parts of the table hold 1440 rows, expected 1920",
       header([=](json& h) { h["x"] = h.at(fp8_table + "shard_3.weight"), h.erase(fp8_table + "shard_3.weight"); })},
      {fp8, "weight_scale: missing",
       header([=](json& h) { h["x"] = h.at(fp8_table + "weight_scale"), h.erase(fp8_table + "weight_scale"); })},
      {fp8, "experts.7.up_proj.weight_scale_inv: missing", header([](json& h) {
         const std::string name = "model.language_model.layers.2.mlp.experts.7.up_proj.weight_scale_inv";
         h["x"] = h.at(name), h.erase(name);
       })},
  };
  for (const Damage& damage : damages) {
    CAPTURE(damage.text);
    const auto set = open_golden_set(damage.set);
    if (!set) KALIBRI_SKIP("no golden data");
    const CheckpointCopy copy(set->checkpoint);
    damage.apply(copy);
    const fixtures::TempDirectory folder;
    const fixtures::RunResult result = run_reference(copy.directory(), {{"hello", {1, 2}}}, folder.path() / "out.h5");
    CHECK(result.exit_status == 2);
    CHECK_THAT(result.err, ContainsSubstring(damage.text));
    CHECK(std::filesystem::is_empty(folder.path()));
  }
}

}  // namespace
}  // namespace kalibri::reference::test
