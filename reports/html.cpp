// The report as one page that needs nothing else: no script, no font, no network. Light and dark by the reader's
// setting.
#include <fmt/format.h>

#include <algorithm>

#include "reports/escape.hpp"
#include "reports/report.hpp"
#include "reports/tables.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--page:#fbfbf9;--ink:#1d2327;--soft:#5d6870;--line:#dfe3e4;--panel:#fff;--good:#0f7b45;--bad:#b3261e;--doubt:#8a5a00;--bar:#e3ecdf}
@media(prefers-color-scheme:dark){:root{--page:#14181a;--ink:#e4e8ea;--soft:#99a5ac;--line:#2c3438;--panel:#1a2023;--good:#5bd093;--bad:#ff8a80;--doubt:#f1bd5c;--bar:#28402f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:2rem 1.25rem 4rem;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.5rem 0 .25rem}
p,.note{color:var(--soft);margin:.25rem 0 .75rem;max-width:60rem}
.verdict{border:1px solid var(--line);border-left:.4rem solid currentColor;background:var(--panel);padding:.8rem 1rem;margin:1.25rem 0;font-size:1.15rem;font-weight:600}
.verdict small{display:block;font-size:.9rem;font-weight:400;color:var(--soft)}
.held{color:var(--good)}.fell_short{color:var(--bad);font-weight:600}.mistrusted,.not_run{color:var(--doubt);font-weight:600}.not_applicable{color:var(--soft)}
.wide{overflow-x:auto;border:1px solid var(--line);background:var(--panel)}
table{border-collapse:collapse;width:100%;font-size:.86rem}
th,td{padding:.28rem .7rem;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
th{position:sticky;top:0;background:var(--panel);color:var(--soft);font-weight:600}
tr:last-child td{border-bottom:0}
.r{text-align:right;font-variant-numeric:tabular-nums;font-family:ui-monospace,monospace}
td.text{white-space:normal;min-width:18rem}
td.bar{background:linear-gradient(90deg,var(--bar) var(--share),transparent 0)}
summary{cursor:pointer;font-size:1.1rem;font-weight:600;margin:2rem 0 .5rem}
pre{overflow-x:auto;border:1px solid var(--line);background:var(--panel);padding:1rem;font-size:.8rem}
)css";

std::string cell_text(const Cell& cell, bool right) {
  if (cell.share_of_bound >= 0) {
    return fmt::format(R"(<td class="r bar" style="--share:{:.0f}%">{}</td>)", 100 * std::min(cell.share_of_bound, 1.0),
                       escaped(cell.text));
  }
  const std::string classes = right ? "r " + cell.status : cell.status;
  return fmt::format("<td class=\"{}\">{}</td>", classes, escaped(cell.text));
}

std::string table_text(const Table& table) {
  std::string text = "<div class=\"wide\"><table><thead><tr>";
  for (const Column& column : table.columns) {
    text += fmt::format("<th{}>{}</th>", column.right ? " class=\"r\"" : "", escaped(column.title));
  }
  text += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    text += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) text += cell_text(row[i], table.columns[i].right);
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string section(const Table& table) {
  return fmt::format("<h2>{}</h2>\n<p class=\"note\">{}</p>\n{}", escaped(table.title), escaped(table.note),
                     table_text(table));
}

/// Findings with their texts; here there is room for them.
Table findings_with_text(const json& report) {
  Table table = findings_table(report);
  table.columns.push_back({"what it says", false});
  const std::vector<json> findings = sorted_findings(report);
  for (std::size_t i = 0; i < findings.size(); ++i) table.rows[i].push_back({findings[i].at("text"), "text"});
  return table;
}

}  // namespace

std::string html(const json& report) {
  const json& verdict = report.at("verdict");
  const std::string status = verdict.at("status");
  std::string text = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">";
  text += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";
  text += fmt::format("<title>Kalibri: {}: {}</title><style>{}</style></head><body>\n",
                      escaped(report.at("checkpoint").at("name")), status_words(status), kStyle);
  text += fmt::format("<h1>Kalibri report</h1>\n<p>{}</p>\n", escaped(heading(report)));
  text += fmt::format("<div class=\"verdict {}\">Verdict: {}<small>{}</small></div>\n", status, status_words(status),
                      escaped(verdict.at("text")));
  text += "<h2>Findings</h2>\n" + table_text(findings_with_text(report));
  text += fmt::format("<p class=\"note\">{}</p>\n", escaped(report.at("rules").at("text")));
  for (const Table& table : tables(report, Detail::full)) text += section(table);
  const json provenance = {{"options", report.at("options")},
                           {"dumps", report.at("dumps")},
                           {"checkpoint", report.at("checkpoint")},
                           {"program", report.at("program")},
                           {"floors", report.at("floors")}};
  text += fmt::format("<details><summary>Options, dumps, versions, floors</summary><pre>{}</pre></details>\n",
                      escaped(provenance.dump(2)));
  return text + "</body></html>\n";
}

}  // namespace kalibri::reports
