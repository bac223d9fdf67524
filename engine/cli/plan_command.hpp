// `kalibri plan`: what of a checkpoint fits into a given memory, how fast it will be, and what more memory buys.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace CLI {
class App;
}

namespace kalibri::cli {

struct PlanOptions {
  std::string directory;  // the checkpoint
  std::string ram;        // "24G"
  std::string precision = "native";
  std::string expert_cache;  // "64": experts kept a layer; "12G": memory; empty: what fits
  std::int64_t context = 0;  // 0: up to FootprintOptions::kDefaultContext
  std::int64_t chunk = 512;
  int n_threads = 0;  // 0 = one a core
  bool measures = false;
  bool json = false;
};

void add_plan_options(CLI::App& command, PlanOptions& options);

/// Reads the checkpoint's headers and config.json and, with `measures` alone, some of its weights. Returns 0, or 1 when
/// it does not fit (the text says what is missing). Throws Error.
int plan_command(const PlanOptions& options, std::ostream& out);

}  // namespace kalibri::cli
