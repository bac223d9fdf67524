// `kalibri verify`: the reference, the engine, all checks, and a report. The main job.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "engine/cli/expert_cache_flags.hpp"

namespace kalibri::cli {

struct VerifyOptions {
  std::string directory;             // the checkpoint
  std::string tokens;                // FILE.json
  std::vector<std::string> prompts;  // or text files; neither: those of --reference, else default_prompts
  std::string out;                   // folder of the report; empty: kalibri-report-NAME
  std::string precision = "native";
  std::string reference_precision;  // what the reference computes in; empty: `precision`
  std::string layers;               // "a-b" or "a"; empty = all
  std::vector<std::string> taps;    // finer tensors to compare as well, or "all"
  std::string positions = "all";    // rows of the logits to compare
  std::int64_t chunk = 512;
  int n_threads = 0;  // 0 = one a core
  ExpertCacheFlags expert_cache;
  std::string reference_program;         // empty: kalibri-reference beside this program
  std::string reference;                 // R.h5 (fp32, chained) instead of running the program
  std::vector<std::string> reference64;  // with it: fp64 dumps, chained and teacher-forced on R.h5, in any order
  bool json = false;                     // the report to `out` instead of tables
  bool colour = false;
  std::ostream* progress = nullptr;  // where to say which step runs; null: nowhere
  std::ostream* warnings = nullptr;  // what does not stop a run; null: nowhere
};

/// Writes dumps and reports into the folder and prints the tables to `out`. Returns the verdict's exit status (0 or 1).
/// Throws Error, dump::Error (status 2).
int verify_command(const VerifyOptions& options, std::ostream& out);

}  // namespace kalibri::cli
