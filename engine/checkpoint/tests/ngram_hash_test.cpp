// The n-gram hash: upstream's rows for the released constants, and exact integers at the largest values there are.
#include "engine/checkpoint/ngram_hash.hpp"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"

using namespace kalibri;
using checkpoint::NgramHash;

namespace {

constexpr std::int64_t kVocab = 248320;
constexpr std::int64_t kEos = 248044;

NgramHash released() {
  return checkpoint::make_ngram_hash({.module = 0,
                                      .vocab_size = kVocab,
                                      .ngram_size = 3,
                                      .heads_per_ngram = 8,
                                      .vocab_size_base = 20000000,
                                      .divisible_by = 128,
                                      .seed = 1234,
                                      .eos_token_id = kEos});
}

std::vector<std::int64_t> rows_of(const NgramHash& hash, const std::vector<std::int32_t>& window) {
  std::vector<std::int64_t> rows(hash.sizes.size());
  hash.rows(window, rows.data());
  return rows;
}

/// The rows of a window without an EOS, each product by `product(id, multiplier)`.
template <typename Product>
std::vector<std::int64_t> rows_by(const NgramHash& hash, const std::vector<std::int32_t>& window, Product&& product) {
  std::vector<std::int64_t> rows;
  auto x = product(window.back(), hash.multipliers[0]);
  for (std::size_t k = 1; k < window.size(); ++k) {
    x ^= product(window[window.size() - 1 - k], hash.multipliers[k]);
    for (std::int64_t i = 0; i < hash.heads_per_ngram; ++i) {
      const std::size_t head = rows.size();
      const auto size = static_cast<decltype(x)>(hash.sizes[head]);
      rows.push_back(hash.offsets[head] + static_cast<std::int64_t>(x % size));
    }
  }
  return rows;
}

__extension__ using Wide = unsigned __int128;  // no product of two 64-bit numbers overflows it

}  // namespace

TEST_CASE("the n-gram rows of the released constants are upstream's, EOS at every kind of place") {
  const auto set = fixtures::find_golden("qwen4-exp-t2");
  if (!set.has_value()) KALIBRI_SKIP("golden set qwen4-exp-t2 is not there");
  const auto golden = nlohmann::json::parse(std::ifstream(*set / "ple_rows_released_constants.json"));
  const NgramHash hash = released();
  CHECK(hash.multipliers == golden.at("multipliers").get<std::vector<std::int64_t>>());
  CHECK(hash.sizes == golden.at("head_vocab_sizes").get<std::vector<std::int64_t>>());
  CHECK(hash.offsets == golden.at("head_offsets").get<std::vector<std::int64_t>>());
  CHECK(hash.n_rows == golden.at("padded_rows").get<std::int64_t>());
  std::vector<std::int32_t> window(3, kEos);
  for (std::size_t t = 0; t < golden.at("input_ids").size(); ++t) {
    window = {window[1], window[2], golden.at("input_ids")[t].get<std::int32_t>()};
    INFO("token " << t);
    CHECK(rows_of(hash, window) == golden.at("rows")[t].get<std::vector<std::int64_t>>());
  }
}

TEST_CASE("the n-gram hash is exact at its largest values, where doubles and 32 bits are not") {
  const std::int64_t half = std::numeric_limits<std::int64_t>::max() / kVocab / 2;
  NgramHash largest = released();
  // The largest that may occur, first; the others far from it, so that no high bits cancel.
  largest.multipliers = {2 * (half - 1) + 1, half / 3 | 1, half / 5 | 1};
  constexpr auto kLast = static_cast<std::int32_t>(kVocab - 1);
  for (const NgramHash& hash : {released(), largest}) {
    for (const std::vector<std::int32_t>& window :
         {std::vector{kLast, kLast, kLast}, {0, kLast, kLast}, {kLast, 0, kLast}, {kLast, kLast, 0}}) {
      INFO("multiplier " << hash.multipliers[0] << ", window " << window[0] << " " << window[1] << " " << window[2]);
      const auto exact = [](std::int32_t id, std::int64_t m) { return static_cast<Wide>(id) * static_cast<Wide>(m); };
      const auto in_double = [](std::int32_t id, std::int64_t m) {
        return static_cast<std::uint64_t>(static_cast<double>(id) * static_cast<double>(m));
      };
      const auto in_32_bits = [](std::int32_t id, std::int64_t m) {
        return static_cast<std::uint32_t>(id) * static_cast<std::uint32_t>(m);
      };
      CHECK(exact(kLast, hash.multipliers[0]) < Wide{1} << 63);
      const std::vector<std::int64_t> rows = rows_of(hash, window);
      CHECK(rows == rows_by(hash, window, exact));
      CHECK(rows != rows_by(hash, window, in_double));
      CHECK(rows != rows_by(hash, window, in_32_bits));
    }
  }
}
