#include "reports/cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace kalibri::reports {

using nlohmann::json;

std::string number_text(const json& value) {
  if (value.is_null()) return "-";
  const double number = value.get<double>();
  if (number == 0) return "0";
  const double size = std::abs(number);
  return size >= 0.01 && size < 1000 ? fmt::format("{:.3g}", number) : fmt::format("{:.2e}", number);
}

Cell cell(const json& value, Kind kind) {
  if (value.is_null()) return {"-", ""};
  switch (kind) {
    case Kind::number:
      return {number_text(value), ""};
    case Kind::share:
      return {value == 1 ? "1" : fmt::format("{:.4f}", std::min(value.get<double>(), 0.9999)), ""};
    case Kind::status:
      return {status_words(value), value};
    case Kind::of_bound: {
      const double percent = 100 * value.get<double>();
      return {percent < 1000 ? fmt::format("{:.0f} %", percent) : "> 999 %", "", value.get<double>()};
    }
    case Kind::name:
    case Kind::count:
      break;
  }
  return {value.is_string() ? value.get<std::string>() : value.dump(), ""};
}

Table make_table(const std::vector<Field>& fields, const Rows& rows) {
  Table table;
  for (const Field& field : fields) {
    table.columns.push_back({field.title, field.kind != Kind::name && field.kind != Kind::status});
  }
  for (const json& row : rows) {
    auto& cells = table.rows.emplace_back();
    for (const Field& field : fields) cells.push_back(cell(row.at(field.member), field.kind));
  }
  return table;
}

std::string place_text(const json& where) {
  std::string text;
  const auto add = [&](const char* member, const char* words) {
    if (!where.contains(member)) return;
    const json& value = where.at(member);
    if (!text.empty()) text += ", ";
    text += words + (value.is_string() ? value.get<std::string>() : value.dump());
  };
  add("layer", "layer ");
  add("prompt", "");
  add("position", "position ");
  add("column", "column ");
  return text;
}

double nearness(const json& value, const json& bound) {
  if (!value.is_number()) return HUGE_VAL;
  const double number = value.get<double>();
  if (!bound.is_number()) return number;
  if (bound.get<double>() > 0) return number / bound.get<double>();
  return number == 0 ? 0 : HUGE_VAL;
}

Rows worst_of_each(const Rows& rows, const char* member, const std::function<double(const json&)>& measure) {
  std::map<json, const json*> worst;
  for (const json& row : rows) {
    const auto [known, is_new] = worst.try_emplace(row.at(member), &row);
    if (!is_new && measure(row) > measure(*known->second)) known->second = &row;
  }
  Rows result;
  for (const auto& entry : worst) result.push_back(*entry.second);
  return result;
}

}  // namespace kalibri::reports
