// The n-gram hash against the released model's constants; its history rule by hand.
#include "reference/ngram_hash.hpp"

#include <limits>
#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "reference/mapped_file.hpp"

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

TEST_CASE("the rows of the released constants are upstream's, EOS at every kind of place") {
  const auto set = fixtures::find_golden("qwen4-exp-t2");
  if (!set) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  const auto golden = nlohmann::json::parse(read_text(*set / "ple_rows_released_constants.json"));
  std::vector<std::int64_t> expected;
  for (const auto& row : golden.at("rows")) {
    for (const auto& id : row) expected.push_back(id);
  }
  CHECK(ngram_rows(make_ngram_hash(released(), 0), golden.at("input_ids").get<std::vector<std::int32_t>>()) ==
        expected);
}

TEST_CASE("the hash is exact at its largest values, where doubles and 32 bits are not") {
  __extension__ using Wide = unsigned __int128;  // no product of two 64-bit numbers overflows it
  const std::int64_t half = std::numeric_limits<std::int64_t>::max() / released().vocab_size / 2;
  NgramHash largest = make_ngram_hash(released(), 0);
  // The largest that may occur, first; the others far from it, so that no high bits cancel.
  largest.multipliers = {2 * (half - 1) + 1, half / 3 | 1, half / 5 | 1};
  const auto last = static_cast<std::int32_t>(released().vocab_size - 1);
  const std::vector<std::int32_t> tokens(3, last);
  for (const NgramHash& hash : {make_ngram_hash(released(), 0), largest}) {
    INFO("multiplier " << hash.multipliers[0]);
    const auto rows_by = [&](auto product) {  // of the last token
      std::vector<std::int64_t> rows;
      auto x = product(hash.multipliers[0]);
      for (std::size_t k = 1; k < 3; ++k) {
        x ^= product(hash.multipliers[k]);
        for (std::size_t i = 0; i < 8; ++i) {
          const std::size_t head = rows.size();
          rows.push_back(hash.offsets[head] +
                         static_cast<std::int64_t>(x % static_cast<decltype(x)>(hash.sizes[head])));
        }
      }
      return rows;
    };
    std::vector<std::int64_t> rows = ngram_rows(hash, tokens);
    rows.erase(rows.begin(), rows.begin() + 32);
    CHECK(rows == rows_by([&](std::int64_t m) { return static_cast<Wide>(m) * static_cast<Wide>(last); }));
    CHECK(rows != rows_by([&](std::int64_t m) {
            return static_cast<std::uint64_t>(static_cast<double>(m) * static_cast<double>(last));
          }));
    CHECK(rows !=
          rows_by([&](std::int64_t m) { return static_cast<std::uint32_t>(m) * static_cast<std::uint32_t>(last); }));
  }
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
