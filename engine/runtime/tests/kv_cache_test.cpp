// The cache against a plain list of all rows: what each query sees, whatever the cuts, and which slots nobody may read.
#include "engine/runtime/kv_cache.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fixtures/catch.hpp"

using kalibri::runtime::KvCache;
using kalibri::runtime::KvStaging;
using kalibri::runtime::VisibleRows;

namespace {

constexpr std::int64_t kRowSize = 3;

float key(std::int64_t pos, std::int64_t i) { return static_cast<float>(10 * pos + i); }

std::vector<float> keys_of(std::int64_t first, std::int64_t n) {
  std::vector<float> rows;
  for (std::int64_t p = first; p < first + n; ++p) {
    for (std::int64_t i = 0; i < kRowSize; ++i) rows.push_back(key(p, i));
  }
  return rows;
}

std::vector<float> negated(std::vector<float> rows) {
  std::transform(rows.begin(), rows.end(), rows.begin(), [](float x) { return -x; });
  return rows;
}

/// All keys, or all values, of the runs.
std::vector<float> joined(const VisibleRows& visible, bool keys) {
  std::vector<float> rows;
  for (std::int64_t i = 0; i < visible.n_runs; ++i) {
    const kalibri::kernels::KeyRun& run = visible.runs[i];
    const float* data = keys ? run.keys : run.values;
    rows.insert(rows.end(), data, data + run.n_rows * kRowSize);
  }
  return rows;
}

/// Appends `cuts` one after another and checks after each what its queries see.
void check_cuts(std::int64_t window, std::int64_t max_tokens, const std::vector<std::int64_t>& cuts) {
  KvCache cache(window, max_tokens, kRowSize);
  KvStaging staging;
  for (const std::int64_t n : cuts) {
    const std::int64_t first = cache.position();
    cache.append(keys_of(first, n).data(), negated(keys_of(first, n)).data(), n, staging);
    REQUIRE(cache.position() == first + n);
    for (std::int64_t pos = first; pos < first + n; ++pos) {
      const VisibleRows rows = cache.visible(pos);
      const std::int64_t oldest = std::max<std::int64_t>(0, pos - window + 1);
      INFO("window " << window << ", position " << pos << ", appended " << n);
      REQUIRE(rows.first_pos == oldest);
      REQUIRE(joined(rows, true) == keys_of(oldest, pos - oldest + 1));
      REQUIRE(joined(rows, false) == negated(keys_of(oldest, pos - oldest + 1)));
    }
  }
}

}  // namespace

TEST_CASE("A query sees the window's newest positions, its own included, whatever the cuts") {
  for (const std::int64_t window : {1, 2, 7, 8, 33}) {
    check_cuts(window, 64, std::vector<std::int64_t>(64, 1));
    check_cuts(window, 64, {64});
    check_cuts(window, 64, {5, 36, 1, 2, 7, 13});
    check_cuts(window, 64, {window, 1, 1, window - 1 > 0 ? window - 1 : 1});
    check_cuts(window, 64, {6, 1, 1, 1, 1, 1, 1});  // prompt 6, then one by one over the edge
  }
}

TEST_CASE("Query 6 of window 7 sees position 0 and query 7 does not") {
  KvCache cache(7, 16, kRowSize);
  KvStaging staging;
  cache.append(keys_of(0, 8).data(), keys_of(0, 8).data(), 8, staging);
  REQUIRE(cache.visible(6).first_pos == 0);
  REQUIRE(cache.visible(7).first_pos == 1);
}

TEST_CASE("A cache without a window grows and never wraps") { check_cuts(1000, 64, {10, 1, 20, 33}); }

TEST_CASE("A ring holds no more rows than its window, and none than the longest sequence") {
  REQUIRE(KvCache(513, 100000, 4).capacity() == 513);
  REQUIRE(KvCache(513, 20, 4).capacity() == 20);
}

TEST_CASE("Slots outside the window may hold anything") {
  const float poison = std::numeric_limits<float>::quiet_NaN();
  KvCache cache(7, 64, kRowSize);
  KvStaging staging;
  std::fill(cache.key_slots().begin(), cache.key_slots().end(), poison);
  for (const std::int64_t n : {1, 1, 3, 4, 1, 1, 5, 1}) {
    const std::int64_t first = cache.position();
    if (first >= cache.capacity()) {  // the oldest row is outside every coming query's window
      const auto slot =
          cache.key_slots().subspan(static_cast<std::size_t>(first % cache.capacity() * kRowSize), kRowSize);
      std::fill(slot.begin(), slot.end(), poison);
    }
    cache.append(keys_of(first, n).data(), keys_of(first, n).data(), n, staging);
    for (std::int64_t pos = first; pos < first + n; ++pos) {
      for (const float x : joined(cache.visible(pos), true)) REQUIRE_FALSE(std::isnan(x));
    }
  }
}
