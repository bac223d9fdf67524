// Rows of experts from disk by hand: sums over a campaign's requests, ratios of pairs, and bytes that no disk gave.
#include "reports/streaming_table.hpp"

#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"
#include "reports/bench_tables.hpp"

namespace kalibri::reports {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

json stretch(int n_tokens, double seconds, double bytes, double disk_bytes) {
  return {{"tokens", n_tokens},
          {"seconds", seconds},
          {"disk_bytes", disk_bytes},
          {"experts", {{"bytes_read", bytes}, {"wait_s", seconds / 2}, {"hits", 1}, {"misses", 3}}}};
}

/// Two requests, the second's prompt held: 4e9 bytes of prompts in 8 s; answers as given in two parts.
json streamed(double seconds, double bytes, double disk_bytes, double others = 0.05) {
  const json held = stretch(0, 0.1, 0, 0);
  return {{"kind", "streamed"},
          {"name", "Kolibri 1, FP8"},
          {"others", others},
          {"result",
           {{"layers", 4},
            {"threads", 2},
            {"expert_cache", {{"slots", 8}, {"experts", 384}, {"reads", "direct"}, {"by", "io_uring"}}},
            {"requests",
             {{{"prompt", stretch(16, 8, 4e9, 5e9)}, {"answer", stretch(32, seconds / 4, bytes / 2, disk_bytes / 2)}},
              {{"prompt", held}, {"answer", stretch(32, seconds * 3 / 4, bytes / 2, disk_bytes / 2)}}}}}}};
}

json disk(double seconds, double bytes, double others = 0.05) {
  return {{"kind", "disk"}, {"name", "dd"}, {"others", others}, {"result", {{"bytes", bytes}, {"seconds", seconds}}}};
}

json rows(const std::vector<json>& runs) { return bench_report(runs).at("streaming"); }

TEST_CASE("experts from disk: all requests' bytes by all their time, beside the disk's, pair by pair") {
  const json both = rows({disk(2, 4e9), streamed(4, 6e9, 6e9), disk(1, 1e9), streamed(4, 8e9, 8e9), disk(1, 5e9),
                          streamed(1, 4e9, 4e9, 0.07)});
  REQUIRE(both.size() == 2);
  const json& row = both[0];
  CHECK(row.at("stretch") == "answer");
  CHECK(row.at("tokens") == 64);
  CHECK(row.at("ratios") == json({.75, 2.0, .8}));
  CHECK(row.at("ratio") == .8);
  CHECK(row.at("gb_per_second") == 2.0);  // of 1.5, 2, 4
  CHECK(row.at("disk_gb_per_second") == 2.0);
  CHECK(row.at("waited") == .5);
  CHECK(row.at("hit_rate") == .25);
  CHECK(row.at("reached") == "no");
  CHECK(both[1].at("stretch") == "prompt");
  CHECK(both[1].at("tokens") == 16);
  CHECK(both[1].at("gb_per_second") == .5);
  CHECK_FALSE(both[1].contains("must"));
  const std::string markdown = bench_markdown({{"machine", nullptr},
                                               {"kernels", json::array()},
                                               {"requests", json::array()},
                                               {"comparisons", json::array()},
                                               {"streaming", both},
                                               {"missing", json::array()}});
  CHECK_THAT(markdown,
             ContainsSubstring("| Kolibri 1, FP8 | 4 | 8 of 384 | direct, io\\_uring | answer 64 | 2.00 | 2.00 "
                               "| 0.80 | 0.85 | 0.95 | no | 0.50 | 0.25 | 1.00 | 0.05 | 0.75 2.00 0.80 |"));
  CHECK_THAT(markdown, ContainsSubstring("| prompt 16 | 0.50 | 2.00 | 0.25 | - | - | - |"));
}

TEST_CASE("experts from disk: what is reached, and what memory gave proves nothing") {
  const auto reached = [](double bytes, double disk_bytes, double others = 0.1) {
    return rows({disk(1, 1e9), streamed(1, bytes, disk_bytes, others)})[0].at("reached");
  };
  CHECK(reached(.84e9, .84e9) == "no");
  CHECK(reached(.85e9, .85e9) == "must");
  CHECK(reached(.95e9, 2e9) == "aim");
  CHECK(reached(.95e9, .95e9, 0.11) == "disturbed");
  CHECK(reached(1e9, .98e9) == "unproven");
  CHECK(reached(1e9, 0) == "unproven");
  CHECK(rows({disk(1, 1e9), streamed(1, 1e9, .5e9), disk(1, 1e9), streamed(1, 1e9, 1e9)})[0].at("from_disk") == .5);
  json uncounted = streamed(1, 1e9, 1e9);
  for (json& request : uncounted["result"]["requests"]) request["answer"].erase("disk_bytes");
  CHECK(rows({disk(1, 1e9), uncounted})[0].at("reached") == "unproven");
}

TEST_CASE("experts from disk: runs without a partner and measurements that are none are refused") {
  CHECK_THROWS_WITH(rows({disk(1, 1e9)}), ContainsSubstring("0 runs of kalibri bench, 1 of the disk's reader"));
  CHECK_THROWS_WITH(rows({streamed(1, 1e9, 1e9)}), ContainsSubstring("1 runs of kalibri bench, 0"));
  CHECK_THROWS_WITH(rows({disk(0, 1e9), streamed(1, 1e9, 1e9)}), ContainsSubstring("is no measurement"));
  CHECK_THROWS_WITH(rows({disk(1, 1e9), streamed(1, 0, 0)}), ContainsSubstring("experts' bytes"));
  CHECK(rows({}).empty());
}

}  // namespace
}  // namespace kalibri::reports
