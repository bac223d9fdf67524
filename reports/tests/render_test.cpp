// The renderings of one small report, as text that a person reads.
#include <algorithm>
#include <sstream>

#include "fixtures/catch.hpp"
#include "reports/cells.hpp"
#include "reports/report.hpp"

using namespace kalibri;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

namespace {

json example() { return reports::read_report(KALIBRI_SOURCE_DIR "/reports/tests/report.json"); }

constexpr const char* kTerminal = R"(tiny (kolibri1), precision exact; kalibri 0.1.0 on avx2

Layer by layer, teacher-forced: residual after the layer; of each layer the worst prompt; stream:
  rel of the worst one
  layer  prompt       rel    stream  rel_token_max     bound  trimmed    sets  diff  status
      0  a|b     2.00e-07  2.50e-07       3.00e-07  1.20e-06        -       1     0  held
      1  a|b         0.25         -            0.5  1.20e-06        -  0.5000     1  fell short

Selected blocks, teacher-forced: queries of sparse attention, and whether they kept the same blocks;
  of each layer the worst prompt
  layer  prompt  with a choice    same  differ  ties  largest gap  gap bound  status
      1  a|b                 8  0.7500       2     1     1.00e-07   4.00e-07  fell short

Other tensors, teacher-forced: of each tensor the row nearest to its bound
  tensor      layer  prompt  judged by     value     bound       rel   max_abs  status
  router_gap      0  a|b     max_abs    2.00e-06  8.00e-06  1.00e-06  2.00e-06  held

Head, teacher-forced: KL(reference || candidate) in nats
  prompt  T  top1    top5   kl_mean    kl_p95    kl_max  at   max_abs  status
  a|b     2     1  0.9999  1.00e-12  1.00e-12  2.00e-12   1  1.00e-05  held
  worst: teacher-forced/residual 0.5 (bound 1.20e-06) at layer 1, a|b, position 0

Decode against prefill: against the same engine's prefill: bits must be equal; of each schedule the
  prompt that differs most, else the longest
  schedule  prompt  prefilled  rows  differing  max_abs  kl_mean  top1  status
  head      a|b             0     2          0        0        0     1  held
  worst: decode/head 0 (bound 0)

Not held
  fell short: teacher-forced/residual: rel_token_max 5.00e-01 is 1.67e+06 floors of 3.00e-07, 4 are
    allowed; <layer 1> is the first to fall short & the only one

Verdict: fell short (1 fell short, 1 held, 1 not applicable)
)";

}  // namespace

TEST_CASE("The terminal's tables are these") { REQUIRE(reports::terminal(example(), false) == kTerminal); }

TEST_CASE(
    "No line of the terminal is wider than 100 characters, however long a name is, and colour adds only escapes") {
  json report = example();
  report["comparisons"]["teacher_forced"]["rows"][0]["prompt"] = std::string(300, 'x');
  report["findings"][1]["text"] = "many words " + std::string(60, 'y') + " " + std::string(60, 'z');
  std::istringstream lines(reports::terminal(report, false));
  for (std::string line; std::getline(lines, line);) REQUIRE(line.size() <= 100);
  std::string coloured = reports::terminal(report, true);
  for (std::size_t at = 0; (at = coloured.find('\x1b')) != std::string::npos;)
    coloured.erase(at, coloured.find('m', at) - at + 1);
  REQUIRE(coloured == reports::terminal(report, false));
}

TEST_CASE("Of many layers those nearest to their bounds are shown, all of them in HTML") {
  json report = example();
  json& rows = report["comparisons"]["teacher_forced"]["rows"];
  const json row = rows[0];
  for (int layer = 2; layer < 50; ++layer) {
    rows.push_back(row);
    rows.back()["layer"] = layer;
    rows.back()["rel_token_max"] = 1e-9 * layer;
  }
  const auto count = [](const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  const auto all = reports::tables(report, reports::Detail::compact);
  REQUIRE(all[0].rows.size() == 12);
  REQUIRE(all[0].rows[0][0].text == "0");   // 3e-7 of 1.2e-6
  REQUIRE(all[0].rows[1][0].text == "1");   // fell short
  REQUIRE(all[0].rows[2][0].text == "40");  // the largest of the others
  REQUIRE(count(reports::html(report), "<td class=\"r \">2.00e-07</td>") == 49);
}

TEST_CASE("Of each band the prompt nearest to its bound is shown, be it by its prefill or its decode") {
  json report = example();
  const auto prompt = [](const char* name, double kl, const json& decode_kl) {
    const json band = {{"first", 0},
                       {"end", 1},
                       {"kl_mean", kl},
                       {"top1", 1},
                       {"decode_kl_mean", decode_kl},
                       {"decode_top1", decode_kl.is_null() ? json() : json(1)},
                       {"bound", 1e-9}};
    return json{{"prompt", name}, {"T", 1}, {"bands", {band}}, {"residual_max", json::array()}};
  };
  json& prompts = report["comparisons"]["bands"]["prompts"];
  const auto shown = [&report] {
    for (const reports::Table& table : reports::tables(report, reports::Detail::compact)) {
      if (table.check == "bands") return table.rows.at(0).at(1).text;
    }
    return std::string();
  };
  prompts = {prompt("low", 1e-11, nullptr), prompt("by prefill", 3e-11, 1e-11), prompt("by decode", 1e-11, 4e-11)};
  CHECK(shown() == "by decode");
  prompts.erase(2);
  CHECK(shown() == "by prefill");
}

TEST_CASE("Markdown escapes what would end a cell, and lists what did not hold") {
  const std::string text = reports::markdown(example());
  REQUIRE_THAT(text, ContainsSubstring("**Verdict: fell short**"));
  REQUIRE_THAT(text, ContainsSubstring("| 1 | a\\|b | 0.25 | - | 0.5 | 1.20e-06 |"));
  REQUIRE_THAT(text, ContainsSubstring("- **fell short**: teacher-forced/residual: rel\\_token\\_max"));
  REQUIRE_THAT(text, ContainsSubstring("|---:|---|---:|"));
}

TEST_CASE("The HTML stands alone: escaped, no script, nothing from elsewhere, findings before tables") {
  const std::string text = reports::html(example());
  REQUIRE_THAT(text, ContainsSubstring("&lt;layer 1&gt; is the first to fall short &amp; the only one"));
  for (const char* absent : {"<script", "http:", "https:", "src=", "@import", "<layer 1>"}) {
    INFO(absent);
    REQUIRE(text.find(absent) == std::string::npos);
  }
  REQUIRE(text.find("<h2>Findings") < text.find("<h2>Layer by layer"));
  REQUIRE_THAT(text, ContainsSubstring("prefers-color-scheme:dark"));
  REQUIRE_THAT(text, ContainsSubstring("<td class=\"r \">1.00e-07, 2.50e-07</td>"));  // rel of each stream
  REQUIRE_THAT(text, ContainsSubstring(R"(style="--share:100%">&gt; 999 %</td>)"));   // a finding far above its bound
}

TEST_CASE("JUnit has a case a finding, what did not hold is a failure, what does not apply is skipped") {
  REQUIRE(reports::junit(example()) == R"(<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="kalibri" tests="3" failures="1">
  <testsuite name="decode" tests="1" failures="0" skipped="0">
    <testcase classname="decode" name="decode/head"/>
  </testsuite>
  <testsuite name="teacher-forced" tests="1" failures="1" skipped="0">
    <testcase classname="teacher-forced" name="teacher-forced/residual">
      <failure type="fell_short" message="rel_token_max 5.00e-01 is 1.67e+06 floors of 3.00e-07, 4 are allowed; &lt;layer 1&gt; is the first to fall short &amp; the only one"/>
    </testcase>
  </testsuite>
  <testsuite name="bands" tests="1" failures="0" skipped="1">
    <testcase classname="bands" name="bands/decode">
      <skipped message="no position is judged"/>
    </testcase>
  </testsuite>
</testsuites>
)");
}

TEST_CASE("Numbers have three digits, absent ones a dash, and a share below 1 never reads 1") {
  using reports::Kind;
  REQUIRE(reports::number_text(nullptr) == "-");
  REQUIRE(reports::number_text(0) == "0");
  REQUIRE(reports::number_text(0.123456) == "0.123");
  REQUIRE(reports::number_text(-1.5e-16) == "-1.50e-16");
  REQUIRE(reports::number_text(123456) == "1.23e+05");
  REQUIRE(reports::cell(1.0, Kind::share).text == "1");
  REQUIRE(reports::cell(0.999999, Kind::share).text == "0.9999");
  REQUIRE(reports::cell(nullptr, Kind::status).text == "-");
  REQUIRE(reports::cell(0.254, Kind::of_bound).text == "25 %");
  REQUIRE(reports::cell(12.5, Kind::of_bound).text == "> 999 %");
}
