// The report for a terminal of 100 columns.
#include <fmt/format.h>

#include <algorithm>

#include "reports/report.hpp"
#include "reports/tables.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;

constexpr std::size_t kWidth = 100;
constexpr std::size_t kGap = 2;

/// Characters of UTF-8 text.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

/// The first characters of `text`, marked when something is cut off.
std::string cut(const std::string& text, std::size_t n) {
  if (width(text) <= n) return text;
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    if (starts && width(result) + 1 == n) break;
    result += text[i];
  }
  return result + "~";
}

std::string painted(const std::string& text, const std::string& status, bool colour) {
  if (!colour || status.empty()) return text;
  const char* code = status == "held"             ? "32"
                     : status == "not_applicable" ? "2"
                     : status == "fell_short"     ? "1;31"
                                                  : "33";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

/// Widths of the columns; the widest column of words gives way when the line would not fit.
std::vector<std::size_t> column_widths(const Table& table) {
  std::vector<std::size_t> widths;
  for (const Column& column : table.columns) widths.push_back(width(column.title));
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i].text));
  }
  std::size_t total = 0;
  for (const std::size_t w : widths) total += w + kGap;
  while (total > kWidth) {
    std::size_t widest = widths.size();
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (!table.columns[i].right && widths[i] > 4 && (widest == widths.size() || widths[i] > widths[widest]))
        widest = i;
    }
    if (widest == widths.size()) break;
    --widths[widest];
    --total;
  }
  return widths;
}

}  // namespace

std::string wrapped(const std::string& text, std::size_t indent, std::size_t column) {
  std::string result(column, ' ');
  const std::size_t start = column;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (column > indent && column + 1 + width(word) > kWidth) {
      result += fmt::format("\n{:{}}", "", indent);
      column = indent;
    } else if (column > start) {
      result += ' ';
      ++column;
    }
    result += word;
    column += width(word);
    begin = end + 1;
  }
  return result;
}

std::string terminal_text(const Table& table, bool colour) {
  std::string text = wrapped(table.note.empty() ? table.title : fmt::format("{}: {}", table.title, table.note), 2);
  if (colour) text.replace(0, table.title.size(), fmt::format("\x1b[1m{}\x1b[0m", table.title));
  text += "\n";
  const std::vector<std::size_t> widths = column_widths(table);
  const auto line = [&](const std::vector<Cell>& cells) {
    std::string result;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string shown = cut(cells[i].text, widths[i]);
      const std::string padding(widths[i] - width(shown), ' ');
      const std::string ink = painted(shown, cells[i].status, colour);
      result += std::string(kGap, ' ') + (table.columns[i].right ? padding + ink : ink + padding);
    }
    result.erase(result.find_last_not_of(' ') + 1);
    return result + "\n";
  };
  std::vector<Cell> titles;
  for (const Column& column : table.columns) titles.push_back({column.title, ""});
  text += line(titles);
  for (const auto& row : table.rows) text += line(row);
  return text;
}

std::string terminal(const json& report, bool colour) {
  std::string text = wrapped(heading(report), 0) + "\n";
  const std::vector<Table> all = tables(report, Detail::compact);
  for (std::size_t i = 0; i < all.size(); ++i) {
    text += fmt::format("\n{}", terminal_text(all[i], colour));
    const bool is_last_of_check = i + 1 == all.size() || all[i + 1].check != all[i].check;
    const std::string worst = is_last_of_check ? worst_of(report, all[i].check) : "";
    if (!worst.empty()) text += wrapped(worst, 4, 2) + "\n";
  }
  bool any = false;
  for (const json& finding : sorted_findings(report)) {
    const std::string status = finding.at("status");
    if (status == "held" || status == "not_applicable") continue;
    if (!any) text += "\nNot held\n";
    any = true;
    const std::string words = fmt::format("{}: {}: {}", status_words(status), finding.at("id").get<std::string>(),
                                          finding.at("text").get<std::string>());
    text += wrapped(words, 4, 2) + "\n";
  }
  const json& verdict = report.at("verdict");
  const std::string status = verdict.at("status");
  text += fmt::format("\nVerdict: {} ({})\n", painted(status_words(status), status, colour),
                      verdict.at("text").get<std::string>());
  return text;
}

}  // namespace kalibri::reports
