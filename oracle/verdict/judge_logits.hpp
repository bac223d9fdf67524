// Logits against their bounds: teacher-forced (the head alone) and chained (everything), end to end, by position band,
// and decode against prefill of one engine.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle/verdict/floor.hpp"

namespace kalibri::oracle {

/// Rows and findings of one comparison.
struct Judged {
  nlohmann::json rows = nlohmann::json::array();
  std::vector<Finding> findings;
};

/// Teacher-forced: the row error of the logits within kKappa floors. Chained: mean and largest KL within kLambda
/// floors, largest |difference| within kKappa floors, top1 and top5 equal but for ties within that; positions from the
/// first token on whose experts differ are not judged, and counted.
Judged judge_logits(const DumpDifference& difference, const Floor* floor, RunMode mode);

/// The members of a report's logits rows that are metrics: top1 … worst_kl_pos.
nlohmann::json to_json(const LogitMetrics& metrics);

}  // namespace kalibri::oracle
