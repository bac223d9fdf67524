// What this machine can do at most, measured in about two seconds: reading memory, reading a checkpoint's files past
// the page cache, and multiplying.
#pragma once

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/cli/plan.hpp"

namespace kalibri::cli {

/// Throws Error(file) when the checkpoint's files cannot be read.
Ceilings measure_ceilings(const checkpoint::Checkpoint& checkpoint, int n_threads);

}  // namespace kalibri::cli
