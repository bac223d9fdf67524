// The engine's side of a dump: runs prompts through a model, layer by layer, and writes what was asked for. Joins the
// engine (which knows no HDF5) and oracle/dump (which knows no model).
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/cli/prompts.hpp"
#include "engine/model/session.hpp"

namespace kalibri::cli {

/// A run through the caches: prefill the first n_prefill tokens at once, then decode n_decode tokens one by one (or
/// what is left of the prompt). Counts are clipped to the prompt; a negative n_prefill means "all but n_decode".
struct ScheduleRequest {
  std::string name;  // dataset decode/<name>/logits
  std::int64_t n_prefill = 0;
  std::int64_t n_decode = 0;
};

struct DumpRequest {
  std::string mode = "chained";                 // chained | teacher-forced | decode
  std::filesystem::path inputs = {};            // teacher-forced: the dump whose residuals are the layers' inputs
  std::filesystem::path selection = {};         // the dump whose selected blocks are taken; empty: the model chooses
  std::filesystem::path experts = {};           // the dump whose experts are taken; empty: the model chooses
  std::int64_t first_layer = 0;                 // [first_layer, end_layer)
  std::int64_t end_layer = 0;                   // 0 = all
  std::vector<std::string> taps = {};           // names of oracle/dump's list; {"all"} = all of them
  std::vector<ScheduleRequest> schedules = {};  // mode decode
  bool by_layer = false;                        // mode decode: all prompts through one layer before the next
  std::string positions = "all";                // rows of the logits, as --positions has them; not in mode decode
  bool logits_only = false;                     // chained: write no layer tensors
  std::int64_t chunk = 512;
  std::string options_json = "{}";   // everything needed to run it again
  std::ostream* warnings = nullptr;  // what does not stop a run; null: nowhere
};

/// Writes OUT, complete or not at all. Chained and teacher-forced runs take all prompts through one layer before the
/// next, so that memory holds one layer's expanded weights; a decode run goes token by token through the
/// model, or with by_layer token by token through each layer: the same bits. Throws Error,
/// dump::Error.
void run_dump(const checkpoint::Checkpoint& checkpoint, const model::Model& model, ThreadPool& pool,
              const std::vector<Prompt>& prompts, const DumpRequest& request, const std::filesystem::path& out);

}  // namespace kalibri::cli
