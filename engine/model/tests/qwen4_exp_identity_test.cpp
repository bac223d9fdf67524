// One model, one answer for qwen4_exp: the same bits whatever the cuts, chunks and threads, and after a restored
// snapshot.
#include <cstring>
#include <vector>

#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"

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

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("qwen4_exp: chunks of 1, 3, 63, 64, 65 and whole give the same bits, on one thread and on two") {
  const auto directory = fixtures::find_golden("qwen4-exp-t2");
  if (!directory.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  for (const char* precision : {"exact", "native"}) {
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
  const std::vector<std::int32_t> ids = tokens(56, loaded.model.info().vocab_size);
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
