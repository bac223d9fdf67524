#include "reports/bench_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kalibri::reports {

namespace {

constexpr double kQuiet = 0.1;  // processors' work by others that does no harm

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double positive(const nlohmann::json& value, const std::string& what) {
  const double number = value.get<double>();
  if (!(number > 0)) throw std::runtime_error(fmt::format("{}: {} is no measurement", what, value.dump()));
  return number;
}

void add_goal(nlohmann::ordered_json& row, const std::optional<Goal>& goal, double value, double others) {
  row["others"] = others;
  if (!goal) return;
  row["must"] = goal->must;
  row["aim"] = goal->aim;
  const bool is_quiet = others <= kQuiet;
  row["reached"] = !is_quiet ? "disturbed" : value >= goal->aim ? "aim" : value >= goal->must ? "must" : "no";
}

Table bench_table(const std::string& title, const std::string& note, std::vector<Column> columns) {
  return {"", title, note, std::move(columns), {}};
}

void add_row(Table& table, const std::vector<std::string>& texts) {
  if (texts.size() != table.columns.size()) throw std::logic_error(table.title + ": a cell for each column");
  std::vector<Cell>& row = table.rows.emplace_back();
  for (const std::string& text : texts) row.push_back({text, ""});
}

std::string two_decimals(const nlohmann::json& row, const char* member) {
  return row.contains(member) ? fmt::format("{:.2f}", row.at(member).get<double>()) : "-";
}

std::string listed(const std::vector<double>& numbers) {
  std::string text;
  for (const double number : numbers) text += fmt::format("{}{:.2f}", text.empty() ? "" : " ", number);
  return text;
}

}  // namespace kalibri::reports
