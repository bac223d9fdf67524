// What the tables of `ci/bench` have in common: numbers that count, what is to be reached, and rows of text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "reports/tables.hpp"

namespace kalibri::reports {

struct Goal {
  double must = 0, aim = 0;
};

/// values: at least one.
double median(std::vector<double> values);

/// A rate or a share: what is not a positive number was not measured. Throws std::runtime_error.
double positive(const nlohmann::json& value, const std::string& what);

/// Puts "others" (processors that others kept busy) into a row and, where there is a goal, "must", "aim" and "reached":
/// "aim", "must", "no", or "disturbed" where others did more than a tenth of a processor's work.
void add_goal(nlohmann::ordered_json& row, const std::optional<Goal>& goal, double value, double others);

Table bench_table(const std::string& title, const std::string& note, std::vector<Column> columns);
/// A text for each column.
void add_row(Table& table, const std::vector<std::string>& texts);

/// "0.81", or "-" where the row has no such member.
std::string two_decimals(const nlohmann::json& row, const char* member);
/// "0.81 0.84": the numbers in their order.
std::string listed(const std::vector<double>& numbers);

}  // namespace kalibri::reports
