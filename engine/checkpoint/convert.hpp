// Writes what a conversion plan says. Every row goes from its place in the source straight to its place in the output,
// on all threads, so that memory does not grow with layers or matrices.
#pragma once

#include <filesystem>
#include <functional>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/convert_plan.hpp"

namespace kalibri::checkpoint {

/// Fills the folder `out`, which must not exist, be empty, or hold a conversion that was interrupted (that one starts
/// again). Until everything is written it lies in out/unfinished under other names; config.json comes last, so that
/// what is not whole is no checkpoint. Then the source's tokenizer, generation settings and licence are copied beside
/// it. `progress` hears of source bytes that are done, from any thread, one call at a time. Throws Error(file) when out
/// holds something else, cannot be written or is full, Error(tensor) for a weight that holds NaN or an infinity; a
/// conversion that fails leaves nothing behind.
void convert(const Checkpoint& checkpoint, const ConvertPlan& plan, const std::filesystem::path& out, ThreadPool& pool,
             const std::function<void(std::int64_t n_bytes)>& progress);

/// Throws what `convert` would throw for `out` before it writes.
void check_output_folder(const std::filesystem::path& out, std::int64_t n_bytes);

}  // namespace kalibri::checkpoint
