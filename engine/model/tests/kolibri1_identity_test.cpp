// One model, one answer: the same bits whatever the cuts, chunks, threads and stale cache rows.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/kolibri1.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"

using namespace kalibri;
using test::LoadedModel;
using test::run_in_cuts;

namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<std::int32_t> golden_ids(const std::filesystem::path& set) {
  const auto golden = fixtures::read_safetensors(set / "golden.safetensors");
  const std::vector<std::int64_t> ids = golden.at("input_ids").integers();
  return {ids.begin(), ids.end()};
}

}  // namespace

TEST_CASE("Golden prompts give the same bits in any cuts, chunks and threads") {
  for (const char* set : {"kolibri1-k1", "kolibri1-k1-fp8", "kolibri1-k2", "kolibri1-k2-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const std::vector<std::int32_t> ids = golden_ids(*directory);
    const auto all = static_cast<std::int64_t>(ids.size());
    for (const char* precision : test::kPrecisions) {
      const LoadedModel loaded(*directory, precision);
      ThreadPool one(1);
      ThreadPool two(2);
      const std::vector<float> whole = run_in_cuts(loaded.model, one, ids, {all}, 512);
      INFO(set << ", " << precision);
      CHECK(same_bits(whole, run_in_cuts(loaded.model, two, ids, {all}, 512)));
      for (const std::int64_t chunk : {1, 3, 7, 33})
        CHECK(same_bits(whole, run_in_cuts(loaded.model, two, ids, {all}, chunk)));
      CHECK(same_bits(whole, run_in_cuts(loaded.model, one, ids, {1}, 512)));
      CHECK(same_bits(whole, run_in_cuts(loaded.model, two, ids, {all - 8, 1}, 512)));
      CHECK(same_bits(whole, run_in_cuts(loaded.model, two, ids, {5, 10, 1, 2, 6, 1}, 4)));
    }
  }
}

TEST_CASE("Tokens go through the model once each, and a hand-over is possible at every position") {
  const auto directory = fixtures::find_golden("kolibri1-k1-fp8");
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const LoadedModel loaded(*directory, "native");
  const std::vector<std::int32_t> ids = golden_ids(*directory);
  const auto all = static_cast<std::int64_t>(ids.size());
  ThreadPool pool(2);
  const std::vector<float> whole = run_in_cuts(loaded.model, pool, ids, {all}, 512);
  const auto vocab = static_cast<std::size_t>(loaded.model.info().vocab_size);
  std::vector<float> logits(vocab);
  for (std::size_t n = 1; n < ids.size(); ++n) {
    model::Session session(loaded.model, pool, {all, 512});
    session.forward(std::span(ids).first(n), {});
    for (std::size_t t = n; t < ids.size(); ++t) {
      session.forward(std::span(ids).subspan(t, 1), logits);
      REQUIRE(std::memcmp(logits.data(), whole.data() + t * vocab, vocab * sizeof(float)) == 0);
    }
    REQUIRE(session.token_forwards() == all);
    REQUIRE(session.position() == all);
  }
}

TEST_CASE("Cache rows outside the window are never read, and one inside it is") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const auto opened = checkpoint::Checkpoint::open(*directory);
  const model::Kolibri1Weights weights(opened, runtime::Precision::parse("native"));
  const std::vector<std::int32_t> ids = golden_ids(*directory);
  const auto all = static_cast<std::int64_t>(ids.size());
  const std::int64_t hidden = weights.config.hidden_size;
  ThreadPool pool(1);
  runtime::Workers workers(pool);
  const float poison = std::numeric_limits<float>::quiet_NaN();
  // The residual after the last layer, token by token; before each token `spoil` may touch the caches.
  const auto run = [&](auto&& spoil) {
    model::Kolibri1Sequence sequence(weights, workers, all);
    std::vector<float> residual(static_cast<std::size_t>(all * hidden));
    for (std::int64_t t = 0; t < all; ++t) {
      for (runtime::KvCache& cache : sequence.caches()) spoil(cache, t);
      const std::span<const std::int32_t> id(ids.data() + t, 1);
      sequence.embed(id, residual.data() + t * hidden);
      for (std::int64_t layer = 0; layer < weights.config.num_hidden_layers; ++layer) {
        sequence.run_layer(layer, id, residual.data() + t * hidden, nullptr);
      }
    }
    return residual;
  };
  const auto spoil_slot = [&](runtime::KvCache& cache, std::int64_t pos) {
    const auto row_size = static_cast<std::int64_t>(cache.key_slots().size()) / cache.capacity();
    const auto first = static_cast<std::size_t>(pos % cache.capacity() * row_size);
    for (const auto slots : {cache.key_slots(), cache.value_slots()}) {
      std::fill_n(slots.begin() + static_cast<std::ptrdiff_t>(first), row_size, poison);
    }
  };
  const std::vector<float> clean = run([](runtime::KvCache&, std::int64_t) {});
  REQUIRE(same_bits(clean, run([&](runtime::KvCache& cache, std::int64_t t) {
                      if (t == 0) {
                        std::fill(cache.key_slots().begin(), cache.key_slots().end(), poison);
                        std::fill(cache.value_slots().begin(), cache.value_slots().end(), poison);
                      }
                      spoil_slot(cache, t);  // the slot that this token overwrites: outside its window
                    })));
  REQUIRE_FALSE(same_bits(clean, run([&](runtime::KvCache& cache, std::int64_t t) {
                            if (t > 0) spoil_slot(cache, t - 1);
                          })));
}

TEST_CASE("Tokens that do not fit are refused and change nothing") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const LoadedModel loaded(*directory, "native");
  ThreadPool pool(1);
  model::Session session(loaded.model, pool, {4, 512});
  const std::vector<std::int32_t> outside = {1, 256};
  const std::vector<std::int32_t> negative = {-1};
  const std::vector<std::int32_t> many = {1, 2, 3, 4, 5};
  using Catch::Matchers::ContainsSubstring;
  REQUIRE_THROWS_WITH(session.forward(outside, {}), ContainsSubstring("token id 256") && ContainsSubstring("index 1"));
  REQUIRE_THROWS_WITH(session.forward(negative, {}), ContainsSubstring("token id -1"));
  REQUIRE_THROWS_WITH(session.forward({}, {}), ContainsSubstring("no tokens"));
  REQUIRE_THROWS_WITH(session.forward(many, {}), ContainsSubstring("this session holds 4"));
  REQUIRE(session.position() == 0);
  REQUIRE_THROWS_WITH(model::Session(loaded.model, pool, {4097, 512}), ContainsSubstring("max_position_embeddings"));
}
