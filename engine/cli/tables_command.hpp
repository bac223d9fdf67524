// `kalibri tables`: the accuracy tables of a model card, measured: a checkpoint's variants in several precisions
// against the reference's own fp32 run.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "engine/cli/expert_cache_flags.hpp"

namespace kalibri::cli {

struct TablesOptions {
  std::string directory;              // the checkpoint
  std::vector<std::string> variants;  // names of table_variants(); empty: all
  std::string tokens;                 // FILE.json
  std::vector<std::string> prompts;   // or text files; neither: those of --reference, else default_prompts
  std::string out;                    // folder of tables and dumps; empty: kalibri-tables-NAME
  std::string reference;              // R.h5 (fp32, chained) instead of running the program
  std::string reference_program;      // empty: kalibri-reference beside this program
  int n_threads = 0;                  // 0 = one a core
  ExpertCacheFlags expert_cache;      // for the variants that use experts as they are stored
  bool fresh = false;                 // take nothing from an earlier run
  bool keep_dumps = false;
  bool json = false;  // tables.json to `out` instead of tables
  bool colour = false;
  std::ostream* progress = nullptr;  // where to say which step runs; null: nowhere
  std::ostream* warnings = nullptr;  // what does not stop a run; null: nowhere
};

/// Measures the variants one after the other, writes tables.json and tables.md after each, and prints the tables to
/// `out`. A variant that cannot run is in the tables as not run, with the reason. What an earlier run in the same
/// folder measured is taken, when program, checkpoint, prompts, reference and precision are the same. Returns 0: tables
/// judge nothing. Throws Error, dump::Error (status 2), also for a checkpoint that is quantised already and for a
/// folder of another checkpoint's tables.
int tables_command(const TablesOptions& options, std::ostream& out);

}  // namespace kalibri::cli
