// The check against report.schema.json.
#include <fmt/format.h>

#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "reports/report.hpp"

namespace kalibri::reports {

extern const char* const kReportSchema;  // report.schema.json, embedded by CMake

namespace {

/// "<root>[findings][3][status]" -> "/findings/3/status".
std::string pointer(const std::vector<std::string>& context) {
  std::string result;
  for (const std::string& part : context) {
    if (part.size() > 2 && part.front() == '[') result += fmt::format("/{}", part.substr(1, part.size() - 2));
  }
  return result.empty() ? "/" : result;
}

}  // namespace

std::string schema_error(const nlohmann::json& report) {
  const nlohmann::json text = nlohmann::json::parse(kReportSchema);
  valijson::Schema schema;
  valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(text), schema);
  valijson::ValidationResults results;
  if (valijson::Validator().validate(schema, valijson::adapters::NlohmannJsonAdapter(report), &results)) return "";
  valijson::ValidationResults::Error error;
  results.popError(error);  // the innermost comes first
  return pointer(error.context) + ": " + error.description;
}

}  // namespace kalibri::reports
