#include "oracle/verdict/row_errors.hpp"

#include <algorithm>
#include <cmath>

namespace kalibri::oracle {

namespace {

double order_statistic(std::vector<double> values, std::size_t index) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::min(index, values.size() - 1));
  std::nth_element(values.begin(), at, values.end(),
                   [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
  return *at;
}

}  // namespace

double RowErrors::Group::lower_quartile() const { return order_statistic(rows, rows.size() / 4); }

double RowErrors::Group::upper_quartile() const { return order_statistic(rows, 3 * rows.size() / 4); }

void RowErrors::add(std::int64_t layer, const std::string& tensor, const std::vector<double>& rows,
                    const std::vector<bool>& left_out) {
  Group& group = groups_[{layer, tensor}];
  const std::size_t n_before = group.rows.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i >= left_out.size() || !left_out[i]) group.rows.push_back(rows[i]);
  }
  group.n_largest_prompt = std::max(group.n_largest_prompt, group.rows.size() - n_before);
}

void RowErrors::add_logits(const LogitsDifference& logits, std::int64_t end) {
  std::vector<double> rows;
  for (const LogitsRow& row : logits.rows) {
    if (row.difference.position < end) rows.push_back(row.rel);
  }
  add(kNoLayer, "logits", rows, {});
}

}  // namespace kalibri::oracle
