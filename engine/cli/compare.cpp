#include "engine/cli/compare.hpp"

#include <fmt/format.h>

#include <ostream>

#include "engine/base/error.hpp"
#include "engine/cli/floor_dumps.hpp"
#include "engine/cli/report_directory.hpp"
#include "engine/kernels/kernels.hpp"
#include "oracle/verdict/report.hpp"
#include "reports/report.hpp"

namespace kalibri::cli {

namespace {

/// Whether both come from one program in one precision, whose bits must then agree.
bool same_engine(const dump::Header& a, const dump::Header& b) {
  return a.producer == b.producer && a.producer_version == b.producer_version && a.precision == b.precision;
}

oracle::Dumps arrange(const dump::Reader& reference, const dump::Reader& candidate) {
  const std::string& mode = candidate.header().mode;
  if (mode == "teacher-forced") return {.reference = &reference, .teacher_forced = &candidate};
  if (mode == "chained") return {.reference = &reference, .chained = &candidate};
  if (mode != "decode") {
    throw Error(ErrorCode::input, fmt::format("{}: mode '{}', expected chained, teacher-forced or decode",
                                              candidate.path().string(), mode));
  }
  if (same_engine(reference.header(), candidate.header())) return {.chained = &reference, .decoded = &candidate};
  return {.reference = &reference, .decoded = &candidate};
}

}  // namespace

int compare_command(const CompareOptions& options, std::ostream& out) {
  const dump::Reader reference(options.reference);
  const dump::Reader candidate(options.candidate);
  oracle::Dumps dumps = arrange(reference, candidate);
  const FloorDumps floors = open_floor_dumps(options.reference64);
  dumps.reference_f64 = floors.chained.get();
  dumps.teacher_forced_f64 = floors.teacher_forced.get();
  const oracle::RunDescription description{.command = "compare",
                                           .options = {{"reference", options.reference},
                                                       {"candidate", options.candidate},
                                                       {"reference64", options.reference64},
                                                       {"window", options.window}},
                                           .version = KALIBRI_VERSION,
                                           .isa = kernels::kernels().isa,
                                           .checkpoint = reference.path().stem().string(),
                                           .window = options.window,
                                           .layers = {}};
  const nlohmann::json report = oracle::make_report(description, dumps);
  if (options.json == "-") {
    out << report.dump(1) << '\n';
  } else {
    if (!options.json.empty()) write_text(options.json, report.dump(1) + "\n");
    out << reports::terminal(report, options.colour);
  }
  return report.at("verdict").at("exit_status").get<int>();
}

}  // namespace kalibri::cli
