// Writes what a conversion plan says. Every row goes from its place in the source straight to its place in the output,
// on all threads, so that memory does not grow with layers or matrices. Nothing is read through a mapping, where a
// shard that becomes shorter, or a disk that fails, would end the program.
#pragma once

#include <filesystem>
#include <functional>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/convert_plan.hpp"

namespace kalibri::checkpoint {

/// Fills the folder `out`, which must not exist, be empty, or hold a conversion that was interrupted: that one starts
/// again, and true is returned. Until everything is written it lies in out/.kalibri-convert under other names;
/// config.json comes last, so that what is not whole is no checkpoint. The source's tokenizer, generation settings and
/// licence are copied beside it. `progress` hears of source bytes that are done, from any thread, one call at a time;
/// what it throws ends the conversion. Throws Error(file) when out is the source, holds something else, is being
/// written by another process, cannot be written or is full, or the source cannot be read, Error(tensor) for a weight
/// that holds NaN or an infinity; a conversion that fails leaves nothing behind.
bool convert(const Checkpoint& checkpoint, const ConvertPlan& plan, const std::filesystem::path& out, ThreadPool& pool,
             const std::function<void(std::int64_t n_bytes)>& progress);

/// Throws Error(file) when fewer than n_bytes are free where `out` is or would be.
void check_room(const std::filesystem::path& out, std::int64_t n_bytes);

}  // namespace kalibri::checkpoint
