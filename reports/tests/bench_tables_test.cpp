// bench.json by hand: medians, ratios of pairs, goals, and runs that cannot be compared.
#include "reports/bench_tables.hpp"

#include <nlohmann/json.hpp>

#include "fixtures/catch.hpp"

namespace kalibri::reports {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

json measurement(int n_tokens, int n_rows, double share, const std::string& format = "bf16") {
  return {{"isa", "avx2"}, {"format", format}, {"tokens", n_tokens}, {"rows", n_rows},
          {"cols", 2560},  {"rate", 20.0},     {"ceiling", 25.0},    {"share", share}};
}

json kernels(const json& measurements, double others = 0.1) {
  return {{"kind", "kernels"}, {"name", "avx2"}, {"others", others}, {"result", measurements}};
}

json our_run(double prefill, double decode, const std::string& precision = "native") {
  const json request = {{"prompt", {{"tokens", 512}, {"tokens_per_second", prefill}}},
                        {"answer", {{"tokens", 32}, {"tokens_per_second", decode}}}};
  return {{"layers", 4}, {"isa", "avx2"}, {"threads", 2}, {"precision", precision}, {"requests", {request}}};
}

json their_run(double prefill, double decode) {
  return {{{"n_threads", 2}, {"n_prompt", 512}, {"n_gen", 0}, {"avg_ts", prefill}},
          {{"n_threads", 2}, {"n_prompt", 0}, {"n_gen", 32}, {"avg_ts", decode}}};
}

std::vector<json> pair(const json& ours, const json& theirs, const std::string& name = "kolibri1-mixed") {
  return {{{"kind", "ours"}, {"name", name}, {"others", 0.1}, {"result", ours}},
          {{"kind", "theirs"}, {"name", name}, {"others", 0.05}, {"result", theirs}}};
}

TEST_CASE("a kernel's share is the median over its matrices, and what it reaches is said") {
  const auto reached = [](const std::vector<double>& shares) {
    json measurements = json::array();
    for (const double share : shares) measurements.push_back(measurement(1, 512, share));
    return bench_report({kernels(measurements)}).at("kernels").at(0);
  };
  CHECK(reached({.70, .90, .95, .80}).at("share") == (.80 + .90) / 2);
  CHECK(reached({.70, .90, .95, .80}).at("reached") == "must");  // of .80 and .92
  CHECK(reached({.92}).at("reached") == "aim");
  CHECK(reached({.79}).at("reached") == "no");
  CHECK(reached({.79}).at("must") == .80);
  CHECK(bench_report({kernels(json::array({measurement(1, 512, .92)}), 0.11)}).at("kernels").at(0).at("reached") ==
        "disturbed");
  CHECK(reached({.1, .2, .3}).at("products").size() == 3);
}

TEST_CASE("kernels of different formats and numbers of tokens are rows of their own, and only some have a goal") {
  const json report = bench_report({kernels({measurement(1, 512, .5), measurement(8, 640, .4), measurement(1, 640, .7),
                                             measurement(8, 640, .9, "affine4")})});
  REQUIRE(report.at("kernels").size() == 3);
  CHECK(report.at("kernels")[0].at("share") == (.5 + .7) / 2);
  CHECK(report.at("kernels")[1].at("must") == .33);
  CHECK_FALSE(report.at("kernels")[2].contains("must"));
  const std::string markdown = bench_markdown(report);
  CHECK_THAT(markdown,
             ContainsSubstring("| avx2 | bf16 | f32 | 1 | 0.60 | 0.80 | 0.92 | no | 0.10 | 512 640 | 0.50 0.70 |"));
  CHECK_THAT(markdown, ContainsSubstring("| avx2 | 4-bit | f32 | 8 | 0.90 | - | - | - | 0.10 | 640 | 0.90 |"));
}

TEST_CASE("a comparison's ratio is the median of its pairs', and both sides' activations are named") {
  std::vector<json> runs = pair(our_run(90, 12), their_run(100, 10));
  for (const auto& [ours, theirs] :
       {std::pair(our_run(100, 30), their_run(50, 20)), {our_run(50, 26), their_run(100, 20)}}) {
    for (const json& run : pair(ours, theirs)) runs.push_back(run);
  }
  const json rows = bench_report(runs).at("comparisons");
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("stretch") == "decode");
  CHECK(rows[0].at("ratio") == 26.0 / 20);  // of 1.2, 1.5, 1.3
  CHECK(rows[0].at("reached") == "must");
  CHECK(rows[0].at("our_activations") == "f32");
  CHECK(rows[0].at("their_activations") == "int8");
  CHECK(rows[1].at("ratio") == .9);  // of 0.9, 2, 0.5
  CHECK(rows[1].at("our_rates") == json({90, 100, 50}));
  CHECK_THAT(bench_markdown(bench_report(runs)),
             ContainsSubstring(
                 "| decode 32 | f32 | q4\\_0, q8\\_0 | int8 | 26.00 | 20.00 | 1.30 | 1.15 | 1.40 | must | 0.10 | "
                 "1.20 1.50 1.30 |"));
  CHECK_THAT(bench_markdown(bench_report(runs)), ContainsSubstring("| reached | others' CPUs | ratios |"));
}

TEST_CASE("a ratio is not that of the two medians") {
  std::vector<json> runs;
  for (const auto& [ours, theirs] : {std::pair(4, 1), {5, 4}, {6, 2}}) {
    for (const json& run : pair(our_run(1, ours), their_run(1, theirs))) runs.push_back(run);
  }
  const json row = bench_report(runs).at("comparisons")[0];
  CHECK(row.at("ratio") == 3.0);  // of 4, 1.25, 3
  CHECK(row.at("ours") == 5.0);
  CHECK(row.at("theirs") == 2.0);
}

TEST_CASE("a comparison beside other work reaches nothing, unless it is less than half of the pairs") {
  std::vector<json> runs;
  for (int i = 0; i < 3; ++i) {
    for (const json& run : pair(our_run(2, 2), their_run(1, 1))) runs.push_back(run);
  }
  const auto reached = [&] { return bench_report(runs).at("comparisons")[0].at("reached"); };
  CHECK(reached() == "aim");
  runs[1]["others"] = 1.9;
  CHECK(reached() == "aim");
  runs[2]["others"] = 0.11;
  CHECK(reached() == "disturbed");
  CHECK(bench_report(runs).at("comparisons")[0].at("others") == 0.11);
  CHECK_THAT(bench_markdown(bench_report(runs)), ContainsSubstring("| disturbed | 0.11 | 2.00 2.00 2.00 |"));
}

TEST_CASE("integer activations are compared only with a run that has them") {
  CHECK(bench_report(pair(our_run(1, 1, "activations=int16"), their_run(1, 1), "kolibri1-mixed-int16"))
            .at("comparisons")[0]
            .at("our_activations") == "int16");
  CHECK_THROWS_WITH(bench_report(pair(our_run(1, 1), their_run(1, 1), "kolibri1-mixed-int16")),
                    ContainsSubstring("not with int16 activations"));
  CHECK_THROWS_WITH(bench_report(pair(our_run(1, 1, "activations=int16"), their_run(1, 1))),
                    ContainsSubstring("not with f32 activations"));
}

TEST_CASE("runs of different threads or tokens, unequal numbers of runs and rates that are none are refused") {
  json theirs = their_run(1, 1);
  theirs[1]["n_threads"] = 4;
  CHECK_THROWS_WITH(bench_report(pair(our_run(1, 1), theirs)), ContainsSubstring("4 threads of llama-bench"));
  theirs = their_run(1, 1);
  theirs[0]["n_prompt"] = 256;
  CHECK_THROWS_WITH(bench_report(pair(our_run(1, 1), theirs)), ContainsSubstring("llama-bench ran 256 tokens"));
  theirs = their_run(1, 1);
  theirs.erase(1);
  CHECK_THROWS_WITH(bench_report(pair(our_run(1, 1), theirs)), ContainsSubstring("llama-bench ran no decode"));
  CHECK_THROWS_WITH(bench_report(pair(our_run(1, 1), their_run(1, 0))), ContainsSubstring("is no measurement"));
  CHECK_THROWS_WITH(bench_report({pair(our_run(1, 1), their_run(1, 1)).front()}),
                    ContainsSubstring("0 of llama-bench"));
  CHECK_THROWS_WITH(bench_report(pair(our_run(1, 1), their_run(1, 1), "llama")),
                    ContainsSubstring("'llama' is neither"));
  CHECK_THROWS_WITH(bench_report({{{"kind", "tape"}, {"name", "x"}}}), ContainsSubstring("no kind of run"));
  CHECK_THROWS_WITH(bench_report({kernels(json::array({measurement(1, 512, -.5)}))}),
                    ContainsSubstring("is no measurement"));
  CHECK_THROWS_AS(bench_report({{{"kind", "kernels"}, {"name", "x"}}}), json::exception);
}

TEST_CASE("a campaign's requests are rows, and what was not measured says why") {
  const json request = {{"name", "repeat"},
                        {"reused", 511},
                        {"prompt", {{"tokens", 1}, {"seconds", 0.05}, {"tokens_per_second", 20.0}}},
                        {"answer", {{"seconds", 2.0}, {"tokens_per_second", 15.5}, {"weight_bytes", 3e10}}},
                        {"read_bytes_per_second", 2e10}};
  json result = our_run(1, 1);
  result["requests"] = {request};
  result["peak_rss_bytes"] = std::int64_t{3} << 30;
  const json report =
      bench_report({{{"kind", "machine"}, {"name", "a CPU"}},
                    {{"kind", "campaign"}, {"name", "kolibri1"}, {"others", 1.5}, {"result", result}},
                    {{"kind", "missing"}, {"name", "beside llama.cpp"}, {"result", "no --llama-bench"}}});
  CHECK(report.at("requests")[0].at("prompt_tokens") == 512);
  CHECK(report.at("requests")[0].at("share_of_read_sum") == .75);
  const std::string markdown = bench_markdown(report);
  CHECK_THAT(
      markdown,
      ContainsSubstring("| kolibri1 | 4 | native | repeat | 512 | 511 | 0.050 | 20.00 | 15.50 | 0.75 | 1.50 | 3.00 |"));
  CHECK_THAT(markdown, ContainsSubstring("| beside llama.cpp | no --llama-bench |"));
  CHECK_THAT(markdown, ContainsSubstring("a CPU"));
  CHECK_FALSE(ContainsSubstring("Beside llama.cpp").match(markdown));
}

}  // namespace
}  // namespace kalibri::reports
