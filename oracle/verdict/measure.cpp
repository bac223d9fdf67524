#include "oracle/verdict/measure.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

namespace kalibri::oracle {

Measure::Measure(const std::string& check, const std::string& name, double multiple)
    : name_(name), multiple_(multiple) {
  worst_.id = fmt::format("{}/{}", check, name);
  worst_.check = check;
  worst_.status = Status::not_applicable;
  worst_.text = "no position is judged";
}

Status Measure::add(double value, std::optional<double> floor, const Where& where, const std::string& label) {
  const bool is_comparable = floor.has_value() && !std::isnan(value);
  const double nearness = is_comparable ? value / (multiple_ * *floor) : std::numeric_limits<double>::infinity();
  const Status status = !floor ? Status::mistrusted : nearness <= 1 ? Status::held : Status::fell_short;
  if (worst_.value && std::pair(status, nearness) <= std::pair(worst_.status, nearness_)) return status;
  nearness_ = nearness;
  label_ = label.empty() ? name_ : label;
  worst_.status = status;
  worst_.value = value;
  worst_.floor = floor;
  worst_.bound = floor ? std::optional(multiple_ * *floor) : std::nullopt;
  worst_.where = where;
  return status;
}

Finding Measure::finding() const {
  Finding finding = worst_;
  if (!finding.value) return finding;
  finding.text = fmt::format("{} {:.2e}", label_, *finding.value);
  finding.text += finding.floor ? fmt::format(", {} x the floor of {:.2e} is allowed", multiple_, *finding.floor)
                                : ": no floor was measured for it: run the reference in fp64 as well";
  return finding;
}

}  // namespace kalibri::oracle
