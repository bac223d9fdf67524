// tables.json: what `kalibri tables` measured of a checkpoint's variants, and published figures of the same kind; the
// check against its schema, and its renderings. Everything here knows that file alone.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kalibri::reports {

/// What is wrong with `tables` by tables.schema.json, "/variants/3/status: …"; empty when nothing is.
std::string tables_error(const nlohmann::json& tables);

/// The published figures of a model family (reports/published), as member "published" of tables.json; null where there
/// are none.
nlohmann::json published_figures(const std::string& model_type);

// Renderings of tables that follow the schema.

/// Variants, teacher-forced and end to end, each published figure behind the measured one; the chief columns.
std::string tables_terminal(const nlohmann::json& tables, bool colour);
/// Every column; also position bands, decode against prefill, and the reference's residual maxima.
std::string tables_markdown(const nlohmann::json& tables);

}  // namespace kalibri::reports
