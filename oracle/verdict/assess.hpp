// One verification as a whole: which comparisons the dumps at hand allow, their rows and findings. It knows no model
// and runs nothing.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle/compare/dump_difference.hpp"

namespace kalibri::oracle {

/// The dumps of one verification; null where there is none.
struct Dumps {
  const dump::Reader* reference = nullptr;           // fp32, chained
  const dump::Reader* reference_f64 = nullptr;       // fp64, chained: the floor of chained numbers
  const dump::Reader* teacher_forced_f64 = nullptr;  // the same, each layer fed by `reference`: the floor of each layer
  const dump::Reader* teacher_forced = nullptr;      // the candidate, each layer fed by `reference`
  const dump::Reader* chained = nullptr;             // the candidate
  const dump::Reader* repeated = nullptr;            // the candidate's prefill a second time
  const dump::Reader* decoded = nullptr;  // through caches: the candidate when `chained` is there, else any engine
};

/// Members "floors" and "comparisons" of a report, and all findings in the order of the checks.
struct Assessment {
  nlohmann::json floors;
  nlohmann::json comparisons;
  std::vector<Finding> findings;
};

/// Layers outside `layers` are not compared. window: sliding window or selection budget, 0 when unknown. Throws
/// dump::Error when a comparison is refused.
Assessment assess(const Dumps& dumps, const LayerRange& layers, std::int64_t window);

/// How a report calls each dump that is there, in a fixed order.
std::vector<std::pair<std::string, const dump::Reader*>> named(const Dumps& dumps);

}  // namespace kalibri::oracle
