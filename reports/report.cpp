#include "reports/report.hpp"

#include <fstream>

namespace kalibri::reports {

nlohmann::json read_report(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file)
    throw Error(path.string() + ": cannot be read: expected a report.json made by 'kalibri verify' or 'compare'");
  nlohmann::json report;
  try {
    report = nlohmann::json::parse(file);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(path.string() + ": is not JSON: " + error.what() + "; write it again with 'kalibri verify'");
  }
  if (const std::string wrong = schema_error(report); !wrong.empty()) {
    throw Error(path.string() + ": is not a Kalibri report, version 1: " + wrong +
                "; write it again with 'kalibri verify'");
  }
  return report;
}

}  // namespace kalibri::reports
