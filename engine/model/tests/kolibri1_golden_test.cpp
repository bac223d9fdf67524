// The engine against the upstream implementation's outputs, on all five golden sets and in both precisions. Bounds are
// what an fp32 implementation was asked to keep.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/shard.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using test::KeepingSink;
using test::LoadedModel;

namespace {

constexpr double kRel = 1e-5;
constexpr double kMaxAbsLogit = 2e-4;
constexpr double kKlMean = 1e-9;

double norm(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

std::vector<double> difference(std::span<const double> a, std::span<const double> b) {
  REQUIRE(a.size() == b.size());
  std::vector<double> d(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return d;
}

double largest(std::span<const double> x) {
  double most = 0;
  for (const double v : x) most = std::isnan(v) ? v : std::max(most, std::abs(v));
  return most;
}

/// Largest over rows of |a_t - b_t| / |b_t|.
double rel_token_max(std::span<const double> a, std::span<const double> b, std::size_t width) {
  const std::vector<double> d = difference(a, b);
  double most = 0;
  for (std::size_t first = 0; first < d.size(); first += width) {
    most = std::max(most, norm(std::span(d).subspan(first, width)) / norm(b.subspan(first, width)));
  }
  return most;
}

double kl_mean(std::span<const double> reference, std::span<const double> candidate, std::size_t vocab) {
  double total = 0;
  for (std::size_t first = 0; first < reference.size(); first += vocab) {
    const auto log_sum = [&](std::span<const double> x) {
      const double top = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (const double v : x) sum += std::exp(v - top);
      return top + std::log(sum);
    };
    const auto r = reference.subspan(first, vocab);
    const auto c = candidate.subspan(first, vocab);
    const double shift = log_sum(c) - log_sum(r);
    for (std::size_t v = 0; v < vocab; ++v) total += std::exp(r[v] - log_sum(r)) * (r[v] - c[v] + shift);
  }
  return total / static_cast<double>(reference.size() / vocab);
}

using Golden = std::map<std::string, fixtures::StoredTensor>;

std::vector<std::int32_t> input_ids(const Golden& golden) {
  const std::vector<std::int64_t> ids = golden.at("input_ids").integers();
  return {ids.begin(), ids.end()};
}

/// The largest residual error over the layers, for the test that must see a defect.
double check_set(const LoadedModel& loaded, const Golden& golden, bool expects_equal) {
  const model::ModelInfo& info = loaded.model.info();
  const std::vector<std::int32_t> ids = input_ids(golden);
  ThreadPool pool(2);
  KeepingSink sink;
  const std::vector<float> logits =
      test::run_in_cuts(loaded.model, pool, ids, {static_cast<std::int64_t>(ids.size())}, 512, &sink);
  double worst = 0;
  for (int layer = 0; layer < info.n_layers; ++layer) {
    char prefix[32];
    std::snprintf(prefix, sizeof prefix, "layer_%02d.", layer);
    const auto tensor = [&](const char* name) { return golden.at(std::string(prefix) + name).values(); };
    const auto hidden = static_cast<std::size_t>(info.hidden_size);
    const std::vector<double> expected = tensor("residual");
    const std::vector<double>& residual = sink.get(layer, "residual");
    const double rel_token = rel_token_max(residual, expected, hidden);
    worst = std::max(worst, rel_token);
    if (!expects_equal) continue;
    INFO("layer " << layer);
    CHECK(norm(difference(residual, expected)) / norm(expected) <= kRel);
    CHECK(rel_token <= kRel);
    CHECK(rel_token_max(sink.get(layer, "attention_out"), tensor("attn_out"), hidden) <= kRel);
    CHECK(rel_token_max(sink.get(layer, "post_attention"), tensor("mid_residual"), hidden) <= kRel);
    CHECK(rel_token_max(sink.get(layer, "moe_out"), tensor("moe_out"), hidden) <= kRel);
    CHECK(rel_token_max(sink.get(layer, "router_logits"), tensor("router_logits"),
                        static_cast<std::size_t>(info.n_experts)) <= kRel);
    CHECK(rel_token_max(sink.get(layer, "expert_weights"), tensor("expert_weights"),
                        static_cast<std::size_t>(info.top_k)) <= kRel);
    CHECK(sink.get(layer, "expert_ids") == tensor("expert_ids"));
  }
  if (!expects_equal) return worst;
  const std::vector<double> wide(logits.begin(), logits.end());
  const std::vector<double> expected = golden.at("logits").values();
  const double max_abs = largest(difference(wide, expected));
  const double kl = kl_mean(expected, wide, static_cast<std::size_t>(info.vocab_size));
  CHECK(max_abs <= kMaxAbsLogit);
  CHECK(kl <= kKlMean);
  WARN("measured: residual rel_token_max " << worst << ", logits max abs " << max_abs << ", KL mean " << kl);
  return worst;
}

void check_greedy(const LoadedModel& loaded, const Golden& golden) {
  const std::int64_t vocab = loaded.model.info().vocab_size;
  const std::vector<std::int32_t> prompt = input_ids(golden);
  const std::vector<std::int64_t> expected = golden.at("greedy_ids").integers();
  ThreadPool pool(2);
  model::Session session(loaded.model, pool, {static_cast<std::int64_t>(prompt.size() + expected.size()), 512});
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  session.forward(prompt, logits);
  for (const std::int64_t id : expected) {
    const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    REQUIRE(best == id);
    session.forward({&best, 1}, logits);
  }
}

/// The set's checkpoint directory, made from k2 where it is a derived one.
std::optional<std::filesystem::path> checkpoint_of(const std::string& set, const fixtures::TempDirectory& scratch) {
  if (set != "kolibri1-k2-sharded") return fixtures::find_golden(set);
  const auto k2 = fixtures::find_golden("kolibri1-k2");
  if (!k2.has_value()) return std::nullopt;
  fixtures::shard_checkpoint(*k2, scratch.path() / set, 2);
  return scratch.path() / set;
}

}  // namespace

TEST_CASE("The engine reproduces each golden set, in both precisions") {
  for (const std::string set :
       {"kolibri1-k1", "kolibri1-k1-fp8", "kolibri1-k2", "kolibri1-k2-fp8", "kolibri1-k2-sharded"}) {
    const fixtures::TempDirectory scratch;
    const auto directory = checkpoint_of(set, scratch);
    const auto truth = fixtures::find_golden(set == "kolibri1-k2-sharded" ? "kolibri1-k2" : set);
    if (!directory.has_value() || !truth.has_value()) KALIBRI_SKIP("golden set " + set + " is not there");
    const Golden golden = fixtures::read_safetensors(*truth / "golden.safetensors");
    for (const char* precision : {"exact", "native"}) {
      INFO(set << ", " << precision);
      const LoadedModel loaded(*directory, precision);
      check_set(loaded, golden, true);
      check_greedy(loaded, golden);
    }
  }
}

TEST_CASE("One changed bit in one expert's weight leaves the golden bounds") {
  const auto directory = fixtures::find_golden("kolibri1-k2");
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k2 is not there");
  const fixtures::TempDirectory scratch;
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(*directory / file, scratch.path() / file);
  }
  const auto model_file = scratch.path() / "model.safetensors";
  std::filesystem::permissions(model_file, std::filesystem::perms::owner_all);
  const auto places = fixtures::read_safetensors_header(model_file);
  const auto& place = places.at("model.layers.3.self_attn.v_proj.weight");
  FILE* file = std::fopen(model_file.c_str(), "r+b");
  REQUIRE(file != nullptr);
  std::fseek(file, static_cast<long>(place.file_offset) + 1, SEEK_SET);
  const int byte = std::fgetc(file);
  std::fseek(file, static_cast<long>(place.file_offset) + 1, SEEK_SET);
  std::fputc(byte ^ 0x80, file);  // the sign of one bf16
  std::fclose(file);
  const Golden golden = fixtures::read_safetensors(*directory / "golden.safetensors");
  REQUIRE_FALSE(check_set(LoadedModel(scratch.path(), "exact"), golden, false) <= kRel);
}
