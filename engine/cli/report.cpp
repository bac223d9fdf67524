#include "engine/cli/report.hpp"

#include <filesystem>
#include <ostream>

#include "engine/base/error.hpp"
#include "reports/report.hpp"

namespace kalibri::cli {

int report_command(const ReportOptions& options, std::ostream& out) {
  if (std::filesystem::exists(options.file) && !std::filesystem::is_regular_file(options.file)) {
    throw Error(ErrorCode::file, options.file + ": is no regular file; name a report.json");
  }
  nlohmann::json report;
  try {
    report = reports::read_report(options.file);
  } catch (const reports::Error& error) {
    throw Error(ErrorCode::format, error.what());
  }
  switch (options.form) {
    case ReportOptions::Form::terminal:
      out << reports::terminal(report, options.colour);
      break;
    case ReportOptions::Form::markdown:
      out << reports::markdown(report);
      break;
    case ReportOptions::Form::html:
      out << reports::html(report);
      break;
    case ReportOptions::Form::junit:
      out << reports::junit(report);
      break;
  }
  return 0;
}

}  // namespace kalibri::cli
