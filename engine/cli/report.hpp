// `kalibri report`: a report.json in another form.
#pragma once

#include <iosfwd>
#include <string>

namespace kalibri::cli {

struct ReportOptions {
  enum class Form { terminal, markdown, html, junit };
  std::string file;  // report.json
  Form form = Form::terminal;
  bool colour = false;
};

/// Prints the report; returns 0. Throws Error(format) when the file is no report.
int report_command(const ReportOptions& options, std::ostream& out);

}  // namespace kalibri::cli
