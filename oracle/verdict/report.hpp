// report.json: what was run, with which options and programs, what was measured, and the verdict. Its schema is
// reports/report.schema.json. The order of everything in it is fixed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "oracle/verdict/assess.hpp"

namespace kalibri::oracle {

/// What a report says about the run that the dumps do not know.
struct RunDescription {
  std::string command;     // "verify" or "compare"
  nlohmann::json options;  // every option
  std::string version;     // of the program
  std::string isa;
  std::string checkpoint;   // its name; empty: unknown
  std::int64_t window = 0;  // 0: unknown
  LayerRange layers;        // that are compared
};

/// Assesses the dumps and puts the report together. At least one dump. Throws dump::Error when a comparison is refused.
nlohmann::json make_report(const RunDescription& run, const Dumps& dumps);

}  // namespace kalibri::oracle
