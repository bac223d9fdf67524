// The report as Markdown tables.
#include <fmt/format.h>

#include "reports/report.hpp"
#include "reports/tables.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

std::string rows_text(const Table& table) {
  std::string text = "|";
  for (const Column& column : table.columns) text += fmt::format(" {} |", markdown_escaped(column.title));
  text += "\n|";
  for (const Column& column : table.columns) text += column.right ? "---:|" : "---|";
  text += "\n";
  for (const auto& row : table.rows) {
    text += "|";
    for (const Cell& cell : row) text += fmt::format(" {} |", markdown_escaped(cell.text));
    text += "\n";
  }
  return text;
}

}  // namespace

std::string markdown_escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '\\' || c == '`' || c == '*' || c == '_' || c == '<' || c == '[') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string markdown_text(const Table& table) {
  std::string text = fmt::format("\n## {}\n\n", markdown_escaped(table.title));
  if (!table.note.empty()) text += markdown_escaped(table.note) + "\n\n";
  return text + rows_text(table);
}

std::string markdown(const json& report) {
  const json& verdict = report.at("verdict");
  std::string text = fmt::format("# Kalibri report\n\n{}\n\n**Verdict: {}** ({})\n", markdown_escaped(heading(report)),
                                 status_words(verdict.at("status")), markdown_escaped(verdict.at("text")));
  text += fmt::format("\n## Findings\n\n{}", rows_text(findings_table(report)));
  for (const json& finding : sorted_findings(report)) {
    const std::string status = finding.at("status");
    if (status == "held" || status == "not_applicable") continue;
    text += fmt::format("\n- **{}**: {}: {}", status_words(status), markdown_escaped(finding.at("id")),
                        markdown_escaped(finding.at("text")));
  }
  for (const Table& table : tables(report, Detail::compact)) text += markdown_text(table);
  text += fmt::format("\n{}\n", markdown_escaped(report.at("rules").at("text")));
  return text;
}

}  // namespace kalibri::reports
