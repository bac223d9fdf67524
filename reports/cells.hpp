// How values of a report become cells of a table.
#pragma once

#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reports/tables.hpp"

namespace kalibri::reports {

using Rows = std::vector<nlohmann::json>;

enum class Kind {
  name,    // as it is, aligned left
  count,   // as it is, aligned right
  number,  // three significant digits
  share,   // four decimals; "1" is exactly 1
  status,
  of_bound,  // a value as a percentage of its bound
};

/// A column: its title, the member of the row that it shows, and how.
struct Field {
  const char* title;
  const char* member;
  Kind kind;
};

/// A null is "-" in every kind.
Cell cell(const nlohmann::json& value, Kind kind);
Table make_table(const std::vector<Field>& fields, const Rows& rows);

/// "0", "-" for null, else three significant digits.
std::string number_text(const nlohmann::json& value);
/// "layer 3, de_long, position 17".
std::string place_text(const nlohmann::json& where);

/// How near a value is to its bound (1: at it); without a bound the value itself. A null value is infinitely near.
double nearness(const nlohmann::json& value, const nlohmann::json& bound);

/// Of the rows with the same `member` the one with the largest measure (the first of equals), by rising member.
Rows worst_of_each(const Rows& rows, const char* member, const std::function<double(const nlohmann::json&)>& measure);

// The tables of one member of "comparisons".
Table layer_table(const nlohmann::json& comparison, Detail detail, bool judged);
Table blocks_table(const nlohmann::json& comparison, Detail detail);
Table tensor_table(const nlohmann::json& comparison);
Table logits_table(const nlohmann::json& comparison);
Table end_to_end_table(const nlohmann::json& comparison);
Table bands_table(const nlohmann::json& comparison, Detail detail);
Table residual_max_table(const nlohmann::json& comparison, Detail detail);
Table decode_table(const nlohmann::json& comparison, Detail detail);

}  // namespace kalibri::reports
