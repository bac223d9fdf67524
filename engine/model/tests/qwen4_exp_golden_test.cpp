// The engine against the upstream implementation's outputs, tensor by tensor, on the golden sets of qwen4_exp and in
// both precisions. Bounds: ten times the measured fp32 noise, at least 1e-5 of a
// tensor's largest value; 1e-4 for a tensor whose noise was not measured.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/model/qwen4_exp.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"

using namespace kalibri;
using model::Qwen4ExpSequence;
using test::KeepingSink;

namespace {

using Golden = std::map<std::string, fixtures::StoredTensor>;

struct GoldenSet {
  const char* name;
  double max_abs_logit;
};
constexpr GoldenSet kSets[] = {
    {"qwen4-exp-t1", 5e-3}, {"qwen4-exp-t1-fp8", 5e-3}, {"qwen4-exp-t2", 6e-3}, {"qwen4-exp-v1", 2e-3}};

struct Loaded {
  Loaded(const std::filesystem::path& directory, const char* precision)
      : checkpoint(checkpoint::Checkpoint::open(directory)),
        weights(checkpoint, runtime::Precision::parse(precision)),
        golden(fixtures::read_safetensors(directory / "golden.safetensors")),
        meta(nlohmann::json::parse(std::ifstream(directory / "meta.json"))) {
    const std::vector<std::int64_t> stored = golden.at("input_ids").integers();
    ids.assign(stored.begin(), stored.end());
  }
  checkpoint::Checkpoint checkpoint;
  model::Qwen4ExpWeights weights;
  Golden golden;
  nlohmann::json meta;
  std::vector<std::int32_t> ids;

  [[nodiscard]] std::int64_t n_tokens() const { return static_cast<std::int64_t>(ids.size()); }
  /// The largest difference that correct fp32 code may show, as a share of the tensor's largest value.
  [[nodiscard]] double bound(const std::string& tensor) const {
    const auto& noise = meta["fp32_vs_fp64"]["noise"];
    return noise.contains(tensor) ? std::max(1e-5, 10 * noise[tensor]["rel_to_max"].get<double>()) : 1e-4;
  }
};

/// A sequence with the golden set's embedding and places (which for images are not the text's own).
struct GoldenRun {
  GoldenRun(const Loaded& loaded, ThreadPool& pool)
      : workers(pool), sequence(loaded.weights, workers, loaded.n_tokens()) {
    if (loaded.golden.count("position_ids") == 0) return;
    const std::vector<std::int64_t> stored = loaded.golden.at("position_ids").integers();
    std::vector<model::AxisPositions> positions(loaded.ids.size());
    for (std::size_t axis = 0; axis < 3; ++axis) {
      for (std::size_t t = 0; t < positions.size(); ++t) positions[t][axis] = stored[axis * positions.size() + t];
    }
    sequence.set_positions(positions, 0);
  }
  /// Tokens [first, first + n) through every layer; residual [n, C H] of the last.
  std::vector<float> run(const Loaded& loaded, std::int64_t first, std::int64_t n, runtime::TapSink* taps) {
    const std::int64_t width = loaded.weights.config.residual_size();
    const auto part = std::span(loaded.ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
    std::vector<float> residual(static_cast<std::size_t>(n * width));
    sequence.embed(part, residual.data());
    if (const auto stored = loaded.golden.find("streams.0");
        stored != loaded.golden.end()) {  // image features are in it
      const std::vector<double> streams = stored->second.values();
      std::copy_n(streams.begin() + first * width, n * width, residual.begin());
    }
    for (std::int64_t l = 0; l < loaded.weights.config.num_hidden_layers; ++l)
      sequence.run_layer(l, part, residual.data(), taps);
    return residual;
  }
  runtime::Workers workers;
  Qwen4ExpSequence sequence;
};

struct HeadOutput {
  std::vector<float> final_norm;
  std::vector<float> logits;
};

HeadOutput run_head(GoldenRun& run, const Loaded& loaded, const std::vector<float>& residual) {
  const auto& c = loaded.weights.config;
  const auto n = static_cast<std::int64_t>(residual.size()) / c.residual_size();
  HeadOutput out{std::vector<float>(static_cast<std::size_t>(n * c.hidden_size)),
                 std::vector<float>(static_cast<std::size_t>(n * c.vocab_size))};
  run.sequence.head(residual.data(), n, out.final_norm.data(), out.logits.data());
  return out;
}

double largest(const std::vector<double>& x) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::abs(v));
  return most;
}

/// Largest |a - b| over the largest |b|; NaN when any value is.
double rel_to_max(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    most = std::isnan(d) ? d : std::max(most, d);
  }
  return most / largest(b);
}

std::vector<double> widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// [S, S] 0 or 1, from the selected blocks of each query and its tail.
std::vector<double> mask_of(const std::vector<double>& blocks, std::int64_t n_tokens,
                            const checkpoint::Qwen4ExpConfig& c) {
  std::vector<double> mask(static_cast<std::size_t>(n_tokens * n_tokens));
  const std::int64_t r = c.indexer_compress_ratio;
  for (std::int64_t t = 0; t < n_tokens; ++t) {
    double* row = mask.data() + t * n_tokens;
    for (std::int64_t i = 0; i < c.blocks_kept(); ++i) {
      const auto block = static_cast<std::int64_t>(blocks[static_cast<std::size_t>(t * c.blocks_kept() + i)]);
      if (block >= 0) std::fill_n(row + block * r, r, 1.0);
    }
    for (std::int64_t key = (t + 1) / r * r; key <= t; ++key) row[key] = 1.0;
  }
  return mask;
}

struct TensorPair {
  const char* golden;
  const char* tap;
};
constexpr TensorPair kFloating[] = {{"attn_mixed", "attn_mixed"},
                                    {"attn_inject", "attn_inject"},
                                    {"dn_core", "delta_core"},
                                    {"mixer_out", "mixer_out"},
                                    {"mlp_mixed", "mlp_mixed"},
                                    {"mlp_inject", "mlp_inject"},
                                    {"router_logits", "router_logits"},
                                    {"router_weights", "expert_weights"},
                                    {"moe_out", "moe_out"},
                                    {"ple_embedding", "ngram_embedding"},
                                    {"ple_out", "ple_out"},
                                    {"block_scores", "index_scores"}};
constexpr TensorPair kEqual[] = {{"router_ids", "expert_ids"}, {"ple_rows", "ngram_rows"}};

void check_tensors(const Loaded& loaded, const KeepingSink& sink, const HeadOutput& head, double max_abs_logit) {
  const auto& c = loaded.weights.config;
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    const auto golden = [&](const std::string& name) {
      return loaded.golden.find("layer" + std::to_string(layer) + "." + name);
    };
    const auto check = [&](const std::string& name, const std::vector<double>& ours,
                           const std::vector<double>& theirs) {
      INFO(name);
      CHECK(rel_to_max(ours, theirs) <= loaded.bound(name));
    };
    if (const auto stream = loaded.golden.find("streams." + std::to_string(layer + 1)); stream != loaded.golden.end()) {
      check(stream->first, sink.get(layer, "residual"), stream->second.values());
    }
    for (const TensorPair& pair : kFloating) {
      if (const auto tensor = golden(pair.golden); tensor != loaded.golden.end())
        check(tensor->first, sink.get(layer, pair.tap), tensor->second.values());
    }
    for (const TensorPair& pair : kEqual) {
      INFO("layer " << layer << ", " << pair.golden);
      if (const auto tensor = golden(pair.golden); tensor != loaded.golden.end())
        CHECK(sink.get(layer, pair.tap) == tensor->second.values());
    }
    if (const auto mask = golden("selected_mask"); mask != loaded.golden.end()) {
      INFO("layer " << layer << ", selected_mask");
      CHECK(mask_of(sink.get(layer, "selected_blocks"), loaded.n_tokens(), c) == mask->second.values());
    }
  }
  const std::vector<double> logits = loaded.golden.at("logits").values();
  const double max_abs = rel_to_max(widened(head.logits), logits) * largest(logits);
  CHECK(rel_to_max(widened(head.final_norm), loaded.golden.at("final_hidden").values()) <=
        loaded.bound("final_hidden"));
  CHECK(max_abs <= max_abs_logit);
  WARN("measured: logits max abs " << max_abs);
}

/// The state after the prompt, where the golden set has it.
void check_state(const Loaded& loaded, const Qwen4ExpSequence::State& state) {
  const auto& c = loaded.weights.config;
  for (std::size_t l = 0; l < state.size(); ++l) {
    const auto golden = [&](const std::string& name) {
      return loaded.golden.find("state.layer" + std::to_string(l) + "." + name);
    };
    INFO("state of layer " << l);
    if (const auto memory = golden("recurrent"); memory != loaded.golden.end()) {
      const AlignedFloats& ours = state[l].delta_net->memory;
      CHECK(rel_to_max(widened({ours.begin(), ours.end()}), memory->second.values()) <= 1e-4);
    }
    if (const auto conv = golden("conv"); conv != loaded.golden.end()) {  // [channels, K], the oldest column unused
      const std::vector<double> stored = conv->second.values();
      const std::vector<float>& rows = state[l].delta_net->conv.rows();
      const auto k = static_cast<std::size_t>(c.linear_conv_kernel_dim);
      std::vector<double> transposed(rows.size());
      const std::size_t channels = stored.size() / k;
      for (std::size_t ch = 0; ch < channels; ++ch) {
        for (std::size_t j = 1; j < k; ++j) transposed[(j - 1) * channels + ch] = stored[ch * k + j];
      }
      CHECK(rel_to_max(widened(rows), transposed) <= 1e-4);
    }
    if (const auto ids = golden("ple_context"); ids != loaded.golden.end()) {
      CHECK(std::vector<std::int64_t>(state[l].ngram->ids.begin(), state[l].ngram->ids.end()) ==
            ids->second.integers());
    }
    if (const auto conv = golden("ple_conv"); conv != loaded.golden.end()) {  // [C H, n]
      const std::vector<double> stored = conv->second.values();
      const auto n = static_cast<std::size_t>(state[l].ngram->conv.n_kept());
      const std::size_t width = stored.size() / n;
      std::vector<double> transposed(stored.size());
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t j = 0; j < n; ++j) transposed[j * width + i] = stored[i * n + j];
      }
      CHECK(rel_to_max(widened(state[l].ngram->conv.rows()), transposed) <= 1e-4);
    }
  }
}

bool same_bits(const float* a, const float* b, std::size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

}  // namespace

TEST_CASE("The engine reproduces every tensor of the golden sets of qwen4_exp, in both precisions") {
  int n_sets = 0;
  for (const GoldenSet& set : kSets) {
    const auto directory = fixtures::find_golden(set.name);
    if (!directory.has_value()) continue;
    ++n_sets;
    for (const char* precision : {"exact", "native"}) {
      INFO(set.name << ", " << precision);
      const Loaded loaded(*directory, precision);
      ThreadPool pool(2);
      GoldenRun whole(loaded, pool);
      KeepingSink sink;
      const HeadOutput head = run_head(whole, loaded, whole.run(loaded, 0, loaded.n_tokens(), &sink));
      check_tensors(loaded, sink, head, set.max_abs_logit);

      // The prompt at once, its state, then token by token: the same bits as the whole.
      const std::int64_t prompt = loaded.meta["prompt_len"].get<std::int64_t>();
      const auto vocab = static_cast<std::size_t>(loaded.weights.config.vocab_size);
      GoldenRun cached(loaded, pool);
      const HeadOutput first = run_head(cached, loaded, cached.run(loaded, 0, prompt, nullptr));
      CHECK(same_bits(first.logits.data(), head.logits.data(), first.logits.size()));
      check_state(loaded, cached.sequence.state());
      for (std::int64_t t = prompt; t < loaded.n_tokens(); ++t) {
        const HeadOutput step = run_head(cached, loaded, cached.run(loaded, t, 1, nullptr));
        REQUIRE(same_bits(step.logits.data(), head.logits.data() + static_cast<std::size_t>(t) * vocab, vocab));
      }
    }
  }
  if (n_sets == 0) KALIBRI_SKIP("no golden set of qwen4_exp is there");
}

TEST_CASE("Greedy continuations of the golden prompts are upstream's") {
  for (const char* set : {"qwen4-exp-t1", "qwen4-exp-t1-fp8", "qwen4-exp-t2"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) continue;
    INFO(set);
    const Loaded loaded(*directory, "native");
    const std::vector<std::int64_t> expected = loaded.golden.at("greedy.ids").integers();
    const std::int64_t prompt = loaded.meta["prompt_len"].get<std::int64_t>();
    const test::LoadedModel model(*directory, "native");
    ThreadPool pool(2);
    model::Session session(model.model, pool, {prompt + static_cast<std::int64_t>(expected.size()), 512});
    std::vector<float> logits(static_cast<std::size_t>(model.model.info().vocab_size));
    session.forward(std::span(loaded.ids).first(static_cast<std::size_t>(prompt)), logits);
    for (const std::int64_t id : expected) {
      const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      REQUIRE(best == id);
      session.forward({&best, 1}, logits);
    }
  }
}
