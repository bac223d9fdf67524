// The n-gram hash against the released model's constants; its history rule by hand.
#include "reference/ngram_hash.hpp"

#include "fixtures/catch.hpp"

namespace kalibri::reference {
namespace {

Qwen4ExpConfig released() {
  Qwen4ExpConfig config;
  config.vocab_size = 248320;
  config.ngram_size = 3;
  config.heads_per_ngram = 8;
  config.ngram_vocab_size_base = 20000000;
  config.make_ngram_vocab_size_divisible_by = 128;
  config.seed = 1234;
  config.eos_token_id = 248044;
  return config;
}

TEST_CASE("the released configuration gives the released constants") {
  const NgramHash hash = make_ngram_hash(released(), 0);
  CHECK(hash.multipliers == std::vector<std::int64_t>{23703573157769, 20109073645365, 8052911324071});
  CHECK(hash.sizes == std::vector<std::int64_t>{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069,
                                                20000077, 20000081, 20000093, 20000107, 20000147, 20000153, 20000159,
                                                20000161, 20000171});
  CHECK(hash.offsets.front() == 0);
  CHECK(hash.offsets.back() == 320001446 - 20000171);
  CHECK(hash.n_table_rows == 320001536);
}

TEST_CASE("a second n-gram layer has multipliers of its own and the primes that follow") {
  const NgramHash first = make_ngram_hash(released(), 0);
  const NgramHash second = make_ngram_hash(released(), 1);
  CHECK(second.multipliers != first.multipliers);
  CHECK(second.sizes.front() > first.sizes.back());
  CHECK(second.offsets.front() == 0);
}

TEST_CASE("an EOS hides what lies before it, but not from itself") {
  NgramHash hash;
  hash.multipliers = {1, 100, 10000};
  hash.sizes = {1000003, 1000033};
  hash.offsets = {0, 5000000};
  hash.heads_per_ngram = 1;
  hash.eos_token_id = 9;
  const auto row = [](std::int64_t t0, std::int64_t t1, std::int64_t t2) {
    const std::int64_t bigram = t0 ^ t1 * 100;
    return std::vector{bigram % 1000003, 5000000 + (bigram ^ t2 * 10000) % 1000033};
  };
  const std::vector<std::int32_t> tokens{1, 2, 3, 9, 4, 5, 6};
  std::vector<std::int64_t> expected;
  for (const auto& r :
       {row(1, 9, 9), row(2, 1, 9), row(3, 2, 1), row(9, 3, 2), row(4, 9, 9), row(5, 4, 9), row(6, 5, 4)}) {
    expected.insert(expected.end(), r.begin(), r.end());
  }
  CHECK(ngram_rows(hash, tokens) == expected);
}

}  // namespace
}  // namespace kalibri::reference
