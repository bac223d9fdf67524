// `kalibri dump`: runs the engine over prompts and writes what it computed.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "engine/cli/expert_cache_flags.hpp"

namespace kalibri::cli {

struct DumpOptions {
  std::string directory;
  std::string tokens;                // FILE.json
  std::vector<std::string> prompts;  // or text files
  std::string out;                   // OUT.h5
  std::string mode = "chained";
  std::string inputs;     // REF.h5, for teacher-forced
  std::string selection;  // REF.h5 whose selected blocks are taken
  std::string experts;    // REF.h5 whose experts are taken
  std::string layers;     // "a-b" or "a"; empty = all
  std::vector<std::string> taps;
  std::optional<std::int64_t> n_prefill;  // mode decode
  std::optional<std::int64_t> n_decode;
  std::string positions = "all";  // rows of the logits
  std::string precision = "native";
  std::int64_t chunk = 512;
  int n_threads = 0;  // 0 = one a core
  ExpertCacheFlags expert_cache;
};

/// Returns the exit status; `warnings` receives what does not stop a run. Throws Error, dump::Error.
int dump_command(const DumpOptions& options, std::ostream& out, std::ostream& warnings);

/// "a-b" or "a" -> [first, end). Throws Error(usage).
void parse_layers(const std::string& text, std::int64_t& first_layer, std::int64_t& end_layer);

}  // namespace kalibri::cli
