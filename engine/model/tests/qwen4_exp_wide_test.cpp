// The released layer widths of qwen4_exp, with few experts and a small budget: the same bits in any cuts and threads,
// an indexer that matters, and a prefill that is no loop over decoding.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;

namespace {

constexpr std::int64_t kVocab = 512;

struct Wide {
  Wide() {
    fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_wide();  // three DeltaNet layers, one sparse one
    shape.n_experts = 16;
    shape.vocab_size = kVocab;
    shape.indexer_budget = 128;
    fixtures::make_qwen4_exp(scratch.path() / "wide", shape, {});
  }
  fixtures::TempDirectory scratch;
};

std::vector<std::int32_t> spread_ids(std::int32_t n) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < n; ++i) ids.push_back(i * 37 % kVocab);
  return ids;
}

}  // namespace

TEST_CASE("qwen4_exp at real width: the same bits on one thread and two, in chunks of 1, 7, 64 and whole") {
  const Wide wide;
  const test::LoadedModel loaded(wide.scratch.path() / "wide", "native");
  REQUIRE(loaded.model.info().residual_size() == 10240);
  const std::vector<std::int32_t> ids = spread_ids(300);
  ThreadPool one(1);
  ThreadPool two(2);
  const auto run = [&](ThreadPool& pool, const std::vector<std::int64_t>& cuts, std::int64_t chunk) {
    return test::run_in_cuts(loaded.model, pool, ids, cuts, chunk);
  };
  const std::vector<float> whole = run(two, {300}, 300);
  const auto same = [&](const std::vector<float>& other) {
    return other.size() == whole.size() && std::memcmp(other.data(), whole.data(), whole.size() * sizeof(float)) == 0;
  };
  CHECK(same(run(one, {300}, 300)));
  CHECK(same(run(two, {300}, 64)));
  CHECK(same(run(two, {293, 7}, 7)));
  CHECK(same(run(two, {280, 1}, 512)));
  CHECK(same(run(two, {1}, 1)));
}

TEST_CASE("qwen4_exp at real width: a token of a prefill of 512 takes at most a third of the time of a decoded one") {
  using Clock = std::chrono::steady_clock;
  const Wide wide;
  const test::LoadedModel loaded(wide.scratch.path() / "wide", "native");
  const std::vector<std::int32_t> ids = spread_ids(512 + 8);
  ThreadPool pool(2);
  std::vector<float> logits(kVocab);
  double prefill = 1e9;  // seconds a token, the best of three
  double decode = 1e9;
  for (int i = 0; i < 3; ++i) {
    model::Session session(loaded.model, pool, {520, 512});
    const auto begin = Clock::now();
    session.forward(std::span(ids).first(512), logits);
    prefill = std::min(prefill, std::chrono::duration<double>(Clock::now() - begin).count() / 512);
    for (std::size_t t = 512; t < ids.size(); ++t) {
      const auto start = Clock::now();
      session.forward(std::span(ids).subspan(t, 1), logits);
      decode = std::min(decode, std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  WARN("prefill " << 1e3 * prefill << " ms a token, decode " << 1e3 * decode << " ms: " << decode / prefill
                  << " times");
  CHECK(decode >= 3 * prefill);
}
