// report.json, read and checked against the schema, and its renderings. Everything here knows the report alone: no
// dump, no model, no bound is computed.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace kalibri::reports {

/// The file is no report: names the file, the member and what is wrong with it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error when the file cannot be read, is not JSON or does not follow report.schema.json.
nlohmann::json read_report(const std::filesystem::path& path);

/// What is wrong with `report` by the schema, "/findings/3/status: …"; empty when nothing is.
std::string schema_error(const nlohmann::json& report);

// Renderings of a report that follows the schema.

/// One compact table a check, its worst row named, the verdict last; at most 100 columns.
std::string terminal(const nlohmann::json& report, bool colour);
/// The terminal's tables for a README.
std::string markdown(const nlohmann::json& report);
/// One self-contained page, findings first, every row.
std::string html(const nlohmann::json& report);
/// One test suite a check, one case a finding; what keeps the verdict from "held" is a failure.
std::string junit(const nlohmann::json& report);

}  // namespace kalibri::reports
