// `kalibri inspect DIR`: what a checkpoint holds and whether it is whole. The facts are engine/checkpoint's; here they
// become text or JSON.
#pragma once

#include <filesystem>
#include <iosfwd>

namespace kalibri::cli {

struct InspectOptions {
  std::filesystem::path directory;
  bool json = false;
  bool full_fingerprint = false;  // hash every byte; values that are not finite are then found too
};

/// Writes to `out`; returns the exit status: 0 when the checkpoint is whole, 1 when a tensor is missing or wrong.
/// Throws Error when the directory or its config.json cannot be used at all.
int inspect_command(const InspectOptions& options, std::ostream& out);

}  // namespace kalibri::cli
