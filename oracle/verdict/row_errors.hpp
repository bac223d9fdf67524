// Row errors of each tensor of each layer over all prompts, and what is typical of them. Where a precision rounds, few
// rows are far off, in which a number fell on the other side of a rounding, and the largest error says little; most
// rows are as near as sums in f32 leave them, and a wrong formula moves them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "oracle/compare/dump_difference.hpp"

namespace kalibri::oracle {

class RowErrors {
 public:
  struct Group {
    std::vector<double> rows;
    std::size_t n_largest_prompt = 0;  // how many are of the prompt that has most

    /// What three quarters of the rows reach, and what three quarters stay within; NaN is largest. 0 without rows.
    [[nodiscard]] double lower_quartile() const;
    [[nodiscard]] double upper_quartile() const;
  };

  /// One prompt's rows but those in `left_out` (empty: none is). layer: or kNoLayer.
  void add(std::int64_t layer, const std::string& tensor, const std::vector<double>& rows,
           const std::vector<bool>& left_out);
  /// The prompt's logits before position `end`.
  void add_logits(const LogitsDifference& logits, std::int64_t end);

  [[nodiscard]] const std::map<std::pair<std::int64_t, std::string>, Group>& groups() const { return groups_; }

 private:
  std::map<std::pair<std::int64_t, std::string>, Group> groups_;
};

}  // namespace kalibri::oracle
