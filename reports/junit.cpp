// The report as JUnit XML: what a CI server shows.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reports/escape.hpp"
#include "reports/report.hpp"
#include "reports/tables.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

bool fails(const json& finding) { return finding.at("status") != "held" && finding.at("status") != "not_applicable"; }

std::string case_text(const json& finding) {
  const std::string status = finding.at("status");
  std::string text =
      fmt::format(R"(    <testcase classname="{}" name="{}")", escaped(finding.at("check")), escaped(finding.at("id")));
  if (status == "held") return text + "/>\n";
  const std::string words = escaped(finding.at("text"));
  text += ">\n";
  text += fails(finding) ? fmt::format(R"(      <failure type="{}" message="{}"/>)", status, words)
                         : fmt::format(R"(      <skipped message="{}"/>)", words);
  return text + "\n    </testcase>\n";
}

}  // namespace

std::string junit(const json& report) {
  const json& findings = report.at("findings");
  std::vector<std::string> checks;  // in the order of their first finding
  for (const json& finding : findings) {
    if (std::find(checks.begin(), checks.end(), finding.at("check")) == checks.end())
      checks.push_back(finding.at("check"));
  }
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  text += fmt::format("<testsuites name=\"kalibri\" tests=\"{}\" failures=\"{}\">\n", findings.size(),
                      std::count_if(findings.begin(), findings.end(), fails));
  for (const std::string& check : checks) {
    std::size_t n_cases = 0, n_failures = 0, n_skipped = 0;
    std::string cases;
    for (const json& finding : findings) {
      if (finding.at("check") != check) continue;
      ++n_cases;
      if (fails(finding)) ++n_failures;
      if (finding.at("status") == "not_applicable") ++n_skipped;
      cases += case_text(finding);
    }
    text += fmt::format("  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n{}  </testsuite>\n",
                        escaped(check), n_cases, n_failures, n_skipped, cases);
  }
  return text + "</testsuites>\n";
}

}  // namespace kalibri::reports
