// One model, one answer for qwen4_exp: the same bits whatever the cuts, chunks and threads, and after a restored
// snapshot.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "engine/model/qwen4_exp.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using test::LoadedModel;
using test::run_in_cuts;

namespace {

std::vector<std::int32_t> tokens(std::int64_t n, std::int64_t vocab) {
  std::vector<std::int32_t> ids;
  std::uint64_t state = 7;
  for (std::int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    ids.push_back(static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocab)));
  }
  return ids;
}

/// The golden set's own prompt and continuation, which in t2 has an EOS at its beginning, in pairs and within n-grams.
std::vector<std::int32_t> golden_ids(const std::filesystem::path& set) {
  const std::vector<std::int64_t> ids =
      fixtures::read_safetensors(set / "golden.safetensors").at("input_ids").integers();
  return {ids.begin(), ids.end()};
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("qwen4_exp: chunks of 1, 3, 63, 64, 65 and whole give the same bits, on one thread and on two") {
  const auto directory = fixtures::find_golden("qwen4-exp-t2");
  if (!directory.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  for (const char* precision : test::kPrecisions) {
    const LoadedModel loaded(*directory, precision);
    const std::vector<std::int32_t> ids = tokens(257, loaded.model.info().vocab_size);
    ThreadPool one(1);
    ThreadPool two(2);
    const std::vector<float> whole = run_in_cuts(loaded.model, one, ids, {257}, 512);
    for (const std::int64_t chunk : {1, 3, 63, 64, 65, 512}) {
      INFO(precision << ", chunk " << chunk);
      CHECK(same_bits(whole, run_in_cuts(loaded.model, two, ids, {257}, chunk)));
    }
  }
}

TEST_CASE("qwen4_exp: all but the last token at once, then that one, equals the whole at each awkward length") {
  for (const char* set : {"qwen4-exp-t2", "qwen4-exp-t1-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const LoadedModel loaded(*directory, "native");
    ThreadPool pool(2);
    for (const std::int64_t n : {2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 150, 257}) {
      const std::vector<std::int32_t> ids = tokens(n, loaded.model.info().vocab_size);
      INFO(set << ", length " << n);
      CHECK(same_bits(run_in_cuts(loaded.model, pool, ids, {n}, 512),
                      run_in_cuts(loaded.model, pool, ids, {n - 1, 1}, 512)));
    }
  }
}

TEST_CASE("qwen4_exp: a hand-over to decoding and a restored snapshot are possible at every position") {
  const auto directory = fixtures::find_golden("qwen4-exp-t2");
  if (!directory.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  const LoadedModel loaded(*directory, "native");
  const auto vocab = static_cast<std::size_t>(loaded.model.info().vocab_size);
  const std::vector<std::int32_t> ids = golden_ids(*directory);
  REQUIRE(ids.size() == 56);
  const std::vector<std::int32_t> others = tokens(100, loaded.model.info().vocab_size);
  ThreadPool pool(2);
  const std::vector<float> whole = run_in_cuts(loaded.model, pool, ids, {56}, 512);
  std::vector<float> logits(vocab);
  for (std::size_t n = 1; n < ids.size(); ++n) {
    model::Session session(loaded.model, pool, {100, 512});
    session.forward(std::span(ids).first(n), {});
    const auto snapshot = session.snapshot();
    const auto finish = [&] {
      for (std::size_t t = n; t < ids.size(); ++t) {
        session.forward(std::span(ids).subspan(t, 1), logits);
        REQUIRE(same_bits(logits, std::span(whole).subspan(t * vocab, vocab)));
      }
    };
    finish();
    session.restore(*snapshot);
    session.forward(std::span(others).first(100 - n), {});  // another continuation in between
    session.restore(*snapshot);
    finish();
  }
}

TEST_CASE("qwen4_exp: FP8 with partial blocks gives the same bits in any cuts, chunks and threads") {
  const fixtures::TempDirectory scratch;
  fixtures::make_qwen4_exp(scratch.path() / "made", fixtures::qwen4_exp_tiny(), {.scale_dtype = "F16"});
  for (const char* precision : test::kPrecisions) {
    const LoadedModel loaded(scratch.path() / "made", precision);
    const std::vector<std::int32_t> ids = tokens(150, loaded.model.info().vocab_size);
    ThreadPool one(1);
    ThreadPool two(2);
    const std::vector<float> whole = run_in_cuts(loaded.model, one, ids, {150}, 512);
    for (const std::int64_t chunk : {1, 3, 63, 64, 65}) {
      INFO(precision << ", chunk " << chunk);
      CHECK(same_bits(whole, run_in_cuts(loaded.model, two, ids, {150}, chunk)));
    }
    CHECK(same_bits(whole, run_in_cuts(loaded.model, two, ids, {1}, 512)));
    CHECK(same_bits(whole, run_in_cuts(loaded.model, one, ids, {17, 2, 1, 64, 66}, 5)));
  }
}

TEST_CASE("qwen4_exp: another session that takes over a snapshot goes on with the same bits") {
  const auto directory = fixtures::find_golden("qwen4-exp-t2");
  if (!directory.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  const LoadedModel loaded(*directory, "native");
  const std::vector<std::int32_t> ids = golden_ids(*directory);
  ThreadPool pool(2);
  const std::vector<float> whole = run_in_cuts(loaded.model, pool, ids, {56}, 512);
  const auto vocab = static_cast<std::size_t>(loaded.model.info().vocab_size);
  std::vector<float> logits(vocab);
  std::shared_ptr<const model::Session::Snapshot> snapshot;
  {
    model::Session first(loaded.model, pool, {56, 512});
    first.forward(std::span(ids).first(41), {});
    snapshot = first.snapshot();
  }
  model::Session second(loaded.model, pool, {56, 7});
  second.forward(std::span(ids).first(9), {});
  second.restore(*snapshot);
  CHECK(second.position() == 41);
  second.forward(std::span(ids).subspan(41), logits);
  CHECK(same_bits(logits, std::span(whole).last(vocab)));
}

TEST_CASE("qwen4_exp: each part of the state matters, so that a snapshot which forgets one is seen") {
  const auto directory = fixtures::find_golden("qwen4-exp-t2");
  if (!directory.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  const auto opened = checkpoint::Checkpoint::open(*directory);
  const model::Qwen4ExpWeights weights(opened, runtime::Precision::parse("native"));
  const auto& c = weights.config;
  const std::vector<std::int32_t> ids = golden_ids(*directory);
  constexpr std::size_t kBefore = 50;  // 12 complete blocks of 4 and two tokens of the next: every part is in use
  ThreadPool pool(1);
  runtime::Workers workers(pool);
  using State = model::Qwen4ExpSequence::State;
  using Spoil = std::function<void(State&, const State& start)>;
  /// The residual after the tokens from kBefore on, after `spoil` has put something of the start into the state.
  const auto run = [&](const Spoil& spoil) {
    model::Qwen4ExpSequence sequence(weights, workers, static_cast<std::int64_t>(ids.size()));
    // All of them, so that a spoilt position still finds one for each block.
    std::vector<model::AxisPositions> positions;
    for (std::int64_t pos = 0; pos < std::ssize(ids); ++pos) positions.push_back({pos, pos, pos});
    sequence.set_positions(std::move(positions), 0);
    const State start = sequence.state();
    std::vector<float> residual(ids.size() * static_cast<std::size_t>(c.residual_size()));
    const auto forward = [&](std::span<const std::int32_t> part) {
      sequence.embed(part, residual.data());
      for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) sequence.run_layer(l, part, residual.data(), nullptr);
    };
    forward(std::span(ids).first(kBefore));
    State state = sequence.state();
    spoil(state, start);
    sequence.restore(state);
    forward(std::span(ids).subspan(kBefore));
    residual.resize((ids.size() - kBefore) * static_cast<std::size_t>(c.residual_size()));
    return residual;
  };
  const std::vector<float> clean = run([](State&, const State&) {});
  REQUIRE(same_bits(clean, run([](State&, const State&) {})));

  const auto first_with = [&](auto has) {
    const State start = model::Qwen4ExpSequence(weights, workers, 1).state();
    return static_cast<std::size_t>(std::ranges::find_if(start, has) - start.begin());
  };
  const std::size_t delta = first_with([](const auto& layer) { return layer.delta_net.has_value(); });
  const std::size_t sparse = first_with([](const auto& layer) { return layer.sparse_attention.has_value(); });
  const std::size_t ngram = first_with([](const auto& layer) { return layer.ngram.has_value(); });
  const std::vector<std::pair<const char*, Spoil>> parts = {
      {"delta memory",
       [&](State& s, const State& start) { s[delta].delta_net->memory = start[delta].delta_net->memory; }},
      {"delta convolution",
       [&](State& s, const State& start) { s[delta].delta_net->conv = start[delta].delta_net->conv; }},
      {"n-gram ids", [&](State& s, const State& start) { s[ngram].ngram->ids = start[ngram].ngram->ids; }},
      {"n-gram convolution", [&](State& s, const State& start) { s[ngram].ngram->conv = start[ngram].ngram->conv; }},
      {"keys", [&](State& s, const State&) { std::ranges::fill(s[sparse].sparse_attention->cache.key_slots(), 0.0F); }},
      {"values",
       [&](State& s, const State&) { std::ranges::fill(s[sparse].sparse_attention->cache.value_slots(), 0.0F); }},
      {"index keys of blocks",
       [&](State& s, const State&) { std::ranges::fill(s[sparse].sparse_attention->block_keys, 0.0F); }},
      {"index keys of the open block",
       [&](State& s, const State&) { std::ranges::fill(s[sparse].sparse_attention->open_block, 0.0F); }},
      {"position of rotation", [&](State& s, const State&) { s[sparse].position -= 4; }},
  };
  for (const auto& [name, spoil] : parts) {
    INFO(name);
    CHECK_FALSE(same_bits(clean, run(spoil)));
  }
}
