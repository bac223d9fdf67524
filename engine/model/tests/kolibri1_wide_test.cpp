// One model, one answer at the real layer width: a seeded random model with the released model's attention and experts'
// sizes, longer than two windows, in every cut, on one thread and on two.
#include <cstring>
#include <vector>

#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;

TEST_CASE("At real layer width 1,100 tokens give the same bits in chunks of 1, 5, 7, 64, 513 and whole") {
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_wide();  // one sliding layer, one full one
  shape.n_experts = 16;
  shape.vocab_size = 512;
  REQUIRE(shape.hidden_size == 2560);
  REQUIRE(shape.n_heads == 48);
  REQUIRE(shape.n_kv_heads == 4);
  REQUIRE(shape.window == 513);
  REQUIRE(shape.n_layers == 2);
  constexpr std::int64_t kTokens = 1100;
  const fixtures::TempDirectory scratch;
  fixtures::make_kolibri1(scratch.path() / "wide", shape, {});
  const test::LoadedModel loaded(scratch.path() / "wide", "native");
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < kTokens; ++i) ids.push_back(i * 37 % 512);

  ThreadPool one(1);
  ThreadPool two(2);
  const auto run = [&](ThreadPool& pool, const std::vector<std::int64_t>& cuts, std::int64_t chunk) {
    return test::run_in_cuts(loaded.model, pool, ids, cuts, chunk);
  };
  const std::vector<float> whole = run(two, {kTokens}, kTokens);
  const auto same = [&](const std::vector<float>& other) {
    return other.size() == whole.size() && std::memcmp(whole.data(), other.data(), whole.size() * sizeof(float)) == 0;
  };
  for (const std::int64_t chunk : {5, 7, 64, 513}) {
    INFO("chunk " << chunk);
    CHECK(same(run(two, {kTokens}, chunk)));
  }
  CHECK(same(run(one, {kTokens}, 513)));
  CHECK(same(run(two, {1}, 1)));                                 // decoding from the first token on
  for (const std::int64_t n : two.tasks_run()) CHECK(n > 1000);  // both threads have worked

  std::vector<std::int32_t> other = ids;
  other[kTokens / 2] ^= 1;
  std::swap(ids, other);
  CHECK_FALSE(same(run(two, {kTokens}, 513)));
}
