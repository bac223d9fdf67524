// The checks against report.schema.json and tables.schema.json.
#include <fmt/format.h>

#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "reports/accuracy_tables.hpp"
#include "reports/embedded.hpp"
#include "reports/report.hpp"

namespace kalibri::reports {

namespace {

/// "<root>[findings][3][status]" -> "/findings/3/status".
std::string pointer(const std::vector<std::string>& context) {
  std::string result;
  for (const std::string& part : context) {
    if (part.size() > 2 && part.front() == '[') result += fmt::format("/{}", part.substr(1, part.size() - 2));
  }
  return result.empty() ? "/" : result;
}

std::string error_by(const char* schema_text, const nlohmann::json& value) {
  const nlohmann::json text = nlohmann::json::parse(schema_text);
  valijson::Schema schema;
  valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(text), schema);
  valijson::ValidationResults results;
  if (valijson::Validator().validate(schema, valijson::adapters::NlohmannJsonAdapter(value), &results)) return "";
  valijson::ValidationResults::Error error;
  results.popError(error);  // the innermost comes first
  return pointer(error.context) + ": " + error.description;
}

}  // namespace

std::string schema_error(const nlohmann::json& report) { return error_by(kReportSchema, report); }
std::string tables_error(const nlohmann::json& tables) { return error_by(kTablesSchema, tables); }

}  // namespace kalibri::reports
