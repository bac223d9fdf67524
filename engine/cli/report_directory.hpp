// The folder that a verification writes: its own, or a new one; nobody else's files are touched.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace kalibri::cli {

/// Creates `directory`, or takes over one that an earlier verification made (its reports and dumps are removed, so that
/// a run that ends early leaves no old verdict). Throws Error(file) when it holds anything else or cannot be written.
void open_report_directory(const std::filesystem::path& directory);

/// Writes `text` to a temporary name beside `path` and renames it. Throws Error(file).
void write_text(const std::filesystem::path& path, const std::string& text);

/// report.json, report.md, report.html and junit.xml.
void write_report(const std::filesystem::path& directory, const nlohmann::json& report);

}  // namespace kalibri::cli
