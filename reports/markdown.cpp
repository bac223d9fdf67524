// The report as Markdown tables.
#include <fmt/format.h>

#include "reports/report.hpp"
#include "reports/tables.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

/// What would end a cell or start markup is escaped.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '\\' || c == '`' || c == '*' || c == '_' || c == '<' || c == '[') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string table_text(const Table& table) {
  std::string text = "|";
  for (const Column& column : table.columns) text += fmt::format(" {} |", escaped(column.title));
  text += "\n|";
  for (const Column& column : table.columns) text += column.right ? "---:|" : "---|";
  text += "\n";
  for (const auto& row : table.rows) {
    text += "|";
    for (const Cell& cell : row) text += fmt::format(" {} |", escaped(cell.text));
    text += "\n";
  }
  return text;
}

}  // namespace

std::string markdown(const json& report) {
  const json& verdict = report.at("verdict");
  std::string text = fmt::format("# Kalibri report\n\n{}\n\n**Verdict: {}** ({})\n", escaped(heading(report)),
                                 status_words(verdict.at("status")), escaped(verdict.at("text")));
  text += fmt::format("\n## Findings\n\n{}", table_text(findings_table(report)));
  for (const json& finding : sorted_findings(report)) {
    const std::string status = finding.at("status");
    if (status == "held" || status == "not_applicable") continue;
    text +=
        fmt::format("\n- **{}**: {}: {}", status_words(status), escaped(finding.at("id")), escaped(finding.at("text")));
  }
  for (const Table& table : tables(report, Detail::compact)) {
    text += fmt::format("\n## {}\n\n", table.title);
    if (!table.note.empty()) text += escaped(table.note) + "\n\n";
    text += table_text(table);
  }
  text += fmt::format("\n{}\n", escaped(report.at("rules").at("text")));
  return text;
}

}  // namespace kalibri::reports
