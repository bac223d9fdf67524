// The harness would have noticed: each deliberate defect of qwen4_exp turns a check of `verify` red, and the first
// tensor in forward order that falls short is the one that the defect's expression computes. Defects of decoding alone
// are seen by the decode checks alone. Some defects are the reference's: its checkpoint is changed, the engine's is
// not. Prints the table defect x first red tap x checks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "engine/cli/tests/mutant_runs.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"

using namespace kalibri;
using fixtures::StoredTensor;
using nlohmann::json;
using test::Fixture;
using test::Outcome;
using Tensors = std::map<std::string, StoredTensor>;

namespace {

/// A layer's tensors in the order in which they are computed.
constexpr std::array kForward = {
    "ngram_embedding", "ple_out",    "attn_mixed",        "attn_inject",    "q",          "k",          "v",
    "index_scores",    "blocks",     "attention_context", "delta_core",     "mixer_out",  "mlp_mixed",  "mlp_inject",
    "router_logits",   "router_gap", "expert_ids",        "expert_weights", "routed_out", "shared_out", "moe_out",
};

std::string status_of(const json& row, const std::string& tensor) {
  if (tensor == "expert_ids") return row.at("route_diff_tokens") > row.at("ties_excused") ? "fell_short" : "held";
  if (tensor == "blocks") return row.at("blocks").is_null() ? "held" : row.at("blocks").at("status").get<std::string>();
  const json& tensors = row.at("tensors");
  return tensors.contains(tensor) ? tensors.at(tensor).at("status").get<std::string>() : "held";
}

/// "3 attention_context": the first tensor that falls short when each layer gets the reference's input; "decode" when
/// only checks of decoding fell short; empty when none did.
std::string first_red(const Outcome& outcome) {
  for (const json& row : outcome.comparisons.at("teacher_forced").at("rows")) {
    if (row.at("status") != "fell_short") continue;
    const auto* found = std::find_if(kForward.begin(), kForward.end(),
                                     [&](const char* tensor) { return status_of(row, tensor) == "fell_short"; });
    return fmt::format("{} {}", row.at("layer").get<int>(), found == kForward.end() ? "residual" : *found);
  }
  for (const char* tensor : {"final_norm", "logits"}) {
    if (outcome.red.contains(std::string("teacher-forced/") + tensor)) return tensor;
  }
  const bool is_decode = std::all_of(outcome.red.begin(), outcome.red.end(), [](const std::string& id) {
    return id.starts_with("decode/") || id.starts_with("bands/") || id == "end-to-end/decode_max_diff";
  });
  return is_decode && outcome.red.contains("decode/tail") ? "decode" : "";
}

struct Defect {
  const char* name;
  const char* first_red;
};

// Layers of T1 and T1-fp8: DeltaNet 0 to 2, sparse attention 3, n-gram embeddings on 1; of T2: sparse attention on 3
// and 7, n-gram embeddings on 1 and 7.
constexpr std::array kT1Defects = {
    Defect{"norm_without_one", "0 attn_mixed"},
    Defect{"norm_over_all_streams", "0 mlp_mixed"},  // before the first block, the streams are equal
    Defect{"delta_norm_one_plus_w", "0 mixer_out"},
    Defect{"delta_gate_silu", "0 mixer_out"},
    Defect{"delta_gate_before_norm", "0 mixer_out"},
    Defect{"delta_norm_eps_1e-5", "0 mixer_out"},
    Defect{"norm_eps_1e-5", "0 attn_mixed"},
    Defect{"delta_q_not_scaled", "0 delta_core"},
    Defect{"delta_no_l2_norm", "0 delta_core"},
    Defect{"delta_key_heads_tiled", "0 delta_core"},
    Defect{"conv_taps_reversed", "0 delta_core"},
    Defect{"delta_no_silu", "0 delta_core"},
    Defect{"delta_dt_bias_dropped", "0 delta_core"},
    Defect{"delta_a_b_swapped", "0 delta_core"},
    Defect{"delta_read_before_decay", "decode"},
    Defect{"delta_output_before_update", "decode"},
    Defect{"delta_conv_history_lost", "decode"},
    Defect{"sparse_gate_in_halves", "3 q"},
    Defect{"sparse_gate_silu", "3 mixer_out"},
    Defect{"sparse_gate_dropped", "3 mixer_out"},
    Defect{"sparse_rope_neighbours", "3 q"},
    Defect{"sparse_rope_last_dims", "3 q"},
    Defect{"sparse_no_rope", "3 q"},
    Defect{"sparse_rope_before_norm", "3 q"},
    Defect{"sparse_kv_heads_tiled", "3 attention_context"},
    Defect{"sparse_dense", "3 blocks"},
    Defect{"sparse_tail_not_attended", "3 attention_context"},
    Defect{"sparse_own_block_kept", "3 blocks"},
    Defect{"sparse_nearest_blocks", "3 blocks"},
    Defect{"index_relu_dropped", "3 index_scores"},
    Defect{"index_keys_normed_before_pooling", "3 index_scores"},
    Defect{"index_block_not_rotated", "3 index_scores"},
    Defect{"index_block_rotated_at_last", "3 index_scores"},
    Defect{"index_query_not_rotated", "3 index_scores"},
    Defect{"index_query_not_normed", "3 index_scores"},
    Defect{"sparse_one_block_less", "3 blocks"},
    Defect{"sparse_tail_inside_budget", "3 blocks"},
    Defect{"router_not_renormalised", "0 expert_weights"},
    Defect{"swap_gate_up", "0 routed_out"},
    Defect{"shared_gate_dropped", "0 moe_out"},
    Defect{"shared_expert_dropped", "0 moe_out"},
    Defect{"mix_sum_for_mean", "0 attn_mixed"},
    Defect{"mix_not_divided", "0 attn_mixed"},
    Defect{"inject_not_divided", "0 attn_inject"},
    Defect{"inject_without_two", "0 attn_inject"},
    Defect{"gates_on_raw_streams", "0 attn_mixed"},
    Defect{"inject_into_normed_streams", "0 mlp_mixed"},
    Defect{"final_mixer_mean", "final_norm"},
    Defect{"ngram_after_mixer", "1 ple_out"},
    Defect{"ngram_no_signed_root", "1 ple_out"},
    Defect{"ngram_gate_not_scaled", "1 ple_out"},
    Defect{"ngram_conv_dilation_1", "1 ple_out"},
    Defect{"ngram_conv_on_unnormed", "1 ple_out"},
    Defect{"ngram_no_silu", "1 ple_out"},
    Defect{"ngram_no_conv", "1 ple_out"},
    Defect{"ngram_layer_for_module", "1 ngram_embedding"},
    Defect{"ngram_add_for_xor", "1 ngram_embedding"},
    Defect{"ngram_offsets_dropped", "1 ngram_embedding"},
};
constexpr std::array kT2Defects = {
    Defect{"ngram_multipliers_reused", "7 ngram_embedding"},
    Defect{"ngram_primes_restarted", "7 ngram_embedding"},
    Defect{"ngram_eos_does_not_cut", "1 ngram_embedding"},
    Defect{"ngram_history_zero", "1 ngram_embedding"},
    Defect{"ngram_eos_cuts_own_history", "1 ngram_embedding"},
    Defect{"ngram_id_history_lost", "decode"},
    Defect{"ngram_conv_history_lost", "decode"},
};
constexpr std::array kFp8Defects = {
    Defect{"fp8_divide", "0 routed_out"},
    Defect{"fp8_scale_first_block", "0 routed_out"},
    Defect{"fp8_block_64", "0 routed_out"},
    Defect{"fp8_scale_col0_only", "0 routed_out"},
    Defect{"ngram_scale_ignored", "1 ngram_embedding"},
    Defect{"ngram_shards_reversed", "1 ngram_embedding"},
};

/// A line of the table: of each check, how many findings fell short.
std::string line(const std::string& defect, const std::string& set, const std::string& first, const Outcome& outcome) {
  std::map<std::string, int> n_red;
  for (const std::string& id : outcome.red) ++n_red[id.substr(0, id.find('/'))];
  std::string text = fmt::format("{} | {} | {} |", defect, set, first);
  for (const auto& [check, n] : n_red) text += fmt::format(" {} {}", check, n);
  return text + "\n";
}

template <std::size_t N>
void check_defects(const char* set, const std::array<Defect, N>& defects) {
  const fixtures::TempDirectory scratch;
  const auto fixture = test::prepare(set, scratch, {"all"});
  if (!fixture.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
  CHECK(test::verify(*fixture, "", scratch).exit_status == 0);
  std::string table = "defect | set | first red tap | red checks\n";
  for (const Defect& defect : defects) {
    const Outcome outcome = test::verify(*fixture, defect.name, scratch);
    const std::string first = first_red(outcome);
    table += line(defect.name, set, first, outcome);
    INFO(defect.name);
    CHECK(first == defect.first_red);
    CHECK(outcome.exit_status == 1);
  }
  WARN(table);
}

/// f32 tensors whose names end so, changed value by value.
void change_floats(Tensors& tensors, const std::string& ending, const std::function<float(float)>& change) {
  for (auto& [name, tensor] : tensors) {
    if (!name.ends_with(ending)) continue;
    REQUIRE(tensor.dtype == "F32");
    for (std::size_t i = 0; i < tensor.bytes.size(); i += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, tensor.bytes.data() + i, sizeof value);
      value = change(value);
      std::memcpy(tensor.bytes.data() + i, &value, sizeof value);
    }
  }
}

struct ReferenceDefect {
  const char* name;
  const char* set;
  const char* first_red;
  std::function<void(json& text_config, Tensors& tensors)> change;
};

const std::array kReferenceDefects = {
    ReferenceDefect{"output gate SiLU", "qwen4-exp-t1", "0 mixer_out",
                    [](json& config, Tensors&) { config["output_gate_type"] = "silu"; }},
    ReferenceDefect{"router weights not renormalised", "qwen4-exp-t1", "0 expert_weights",
                    [](json& config, Tensors&) { config["norm_topk_prob"] = false; }},
    ReferenceDefect{"w instead of 1 + w in the index keys' norm", "qwen4-exp-t1", "3 index_scores",
                    [](json&, Tensors& tensors) {
                      change_floats(tensors, "k_layernorm.weight", [](float w) { return w - 1.0F; });
                    }},
    ReferenceDefect{
        "w instead of 1 + w in q_norm", "qwen4-exp-t1", "3 q",
        [](json&, Tensors& tensors) { change_floats(tensors, "q_norm.weight", [](float w) { return w - 1.0F; }); }},
    ReferenceDefect{"gate and up swapped", "qwen4-exp-t1", "0 routed_out",
                    [](json&, Tensors& tensors) {
                      for (auto& [name, tensor] : tensors) {
                        if (!name.ends_with("experts.gate_up_proj")) continue;
                        const auto half = static_cast<std::ptrdiff_t>(tensor.bytes.size()) / tensor.shape[0] / 2;
                        for (std::ptrdiff_t e = 0; e < tensor.shape[0]; ++e) {
                          const auto gate = tensor.bytes.begin() + 2 * e * half;
                          std::swap_ranges(gate, gate + half, gate + half);
                        }
                      }
                    }},
    ReferenceDefect{"a and b swapped", "qwen4-exp-t1", "0 delta_core",
                    [](json&, Tensors& tensors) {
                      const std::string layer = "model.layers.0.linear_attn.";
                      std::swap(tensors.at(layer + "in_proj_a.weight"), tensors.at(layer + "in_proj_b.weight"));
                    }},
    ReferenceDefect{"an FP8 scale of the next block", "qwen4-exp-t1-fp8", "2 routed_out",
                    [](json&, Tensors& tensors) {
                      const std::string expert = "model.language_model.layers.2.mlp.experts.1.";
                      auto& scales = tensors.at(expert + "up_proj.weight_scale_inv").bytes;  // bf16 [1, 2]
                      REQUIRE(scales.size() == 4);
                      std::swap_ranges(scales.begin(), scales.begin() + 2, scales.begin() + 2);
                    }},
};

}  // namespace

TEST_CASE("Every deliberate defect of qwen4_exp is seen, first in the tensor that it changes (T1)") {
  check_defects("qwen4-exp-t1", kT1Defects);
}

TEST_CASE("Every deliberate defect of qwen4_exp is seen, first in the tensor that it changes (T2)") {
  check_defects("qwen4-exp-t2", kT2Defects);
}

TEST_CASE("Every deliberate defect of qwen4_exp is seen, first in the tensor that it changes (T1-fp8)") {
  check_defects("qwen4-exp-t1-fp8", kFp8Defects);
}

TEST_CASE("Defects on the reference's side of qwen4_exp are seen in the same places") {
  const fixtures::TempDirectory scratch;
  std::string table = "the reference's defect | set | first red tap | red checks\n";
  for (const ReferenceDefect& defect : kReferenceDefects) {
    auto whole = test::find_fixture(defect.set, scratch, {"all"});
    if (!whole.has_value()) KALIBRI_SKIP(std::string("golden set ") + defect.set + " is not there");
    const fixtures::TempDirectory changed;
    json config = json::parse(fixtures::read_file(whole->directory / "config.json"));
    Tensors tensors = fixtures::read_safetensors(whole->directory / "model.safetensors");
    defect.change(config.contains("text_config") ? config["text_config"] : config, tensors);
    fixtures::write_file(changed.path() / "config.json", config.dump());
    std::vector<fixtures::TensorDeclaration> declarations;
    for (const auto& [name, tensor] : tensors) declarations.push_back({name, tensor.dtype, tensor.shape});
    fixtures::SafetensorsWriter writer(changed.path() / "model.safetensors", declarations);
    for (const auto& [name, tensor] : tensors) writer.write(tensor.bytes);
    writer.close();

    const Fixture fixture = test::with_reference_of(*whole, "changed", changed.path(), scratch);
    const Outcome outcome = test::verify(fixture, "", scratch);
    const std::string first = first_red(outcome);
    table += line(defect.name, defect.set, first, outcome);
    INFO(defect.name);
    CHECK(first == defect.first_red);
    CHECK(outcome.exit_status == 1);
  }
  WARN(table);
}
