// The state of a training run in one file, so that a run killed at any point goes on from the last one written. A new
// state is written beside the old one and takes its name when it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "reference/training/parameters.hpp"

namespace kalibri::reference::training {

struct RunState {
  std::string model_type, size;
  std::int64_t step = 0;                    // steps done
  std::uint64_t next_document = 0;          // of the corpus
  std::vector<float> values, mean, square;  // as in the table, and as Adam has them
};

/// Throws Error.
void write_run_state(const std::filesystem::path& directory, const RunState& state);
/// The state in `directory`. Throws Error when the file is damaged or cut short.
RunState read_run_state(const std::filesystem::path& directory);
/// Whether there is one.
bool has_run_state(const std::filesystem::path& directory);

}  // namespace kalibri::reference::training
