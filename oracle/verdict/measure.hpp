// One measure held against its bound wherever it was taken; it remembers the worst, for one finding.
#pragma once

#include <optional>
#include <string>

#include "oracle/compare/finding.hpp"

namespace kalibri::oracle {

class Measure {
 public:
  /// The finding is CHECK/NAME; the bound of each value is `multiple` times its floor.
  Measure(const std::string& check, const std::string& name, double multiple);

  /// Judges one value: fell_short above its bound or when it is NaN, mistrusted without a floor. `label` is what the
  /// text calls it (NAME when empty).
  Status add(double value, std::optional<double> floor, const Where& where, const std::string& label = "");

  /// The worst value (of the heaviest status that nearest its bound, or furthest above); not_applicable when none was
  /// added.
  [[nodiscard]] Finding finding() const;

 private:
  std::string name_;
  double multiple_;
  Finding worst_;
  double nearness_ = 0;  // of worst_
  std::string label_;    // of worst_
};

}  // namespace kalibri::oracle
