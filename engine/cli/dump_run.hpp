// The engine's side of a dump: runs prompts through a model, layer by layer, and writes what was asked for. Joins the
// engine (which knows no HDF5) and oracle/dump (which knows no model).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/model/session.hpp"
#include "oracle/dump/reader.hpp"

namespace kalibri::cli {

struct Prompt {
  std::string name;
  std::vector<std::int32_t> tokens;
  std::string text_sha256;  // empty when the prompt came as ids
};

/// A run through the caches: prefill the first n_prefill tokens at once, then decode n_decode tokens one by one (or what
/// is left of the prompt). Counts are clipped to the prompt; a negative n_prefill means "all but n_decode".
struct ScheduleRequest {
  std::string name;  // dataset decode/<name>/logits
  std::int64_t n_prefill = 0;
  std::int64_t n_decode = 0;
};

struct DumpRequest {
  std::string mode = "chained";              // chained | teacher-forced | decode
  std::filesystem::path inputs;              // teacher-forced: the dump whose residuals are the layers' inputs
  std::int64_t first_layer = 0;              // [first_layer, end_layer)
  std::int64_t end_layer = 0;                // 0 = all
  std::vector<std::string> taps;             // names of oracle/dump's list; {"all"} = all of them
  std::vector<ScheduleRequest> schedules;    // mode decode
  bool logits_only = false;                  // chained: write no layer tensors
  std::int64_t chunk = 512;
  std::string options_json = "{}";           // everything needed to run it again
};

/// Writes OUT (complete or not at all). Throws kalibri::Error, dump::Error.
void run_dump(const checkpoint::Checkpoint& checkpoint, const model::Model& model, ThreadPool& pool,
              const std::vector<Prompt>& prompts, const DumpRequest& request, const std::filesystem::path& out);

/// {"name": [ids…], …} from a JSON file. Throws Error naming the file and the entry.
std::vector<Prompt> read_token_file(const std::filesystem::path& path);

}  // namespace kalibri::cli
