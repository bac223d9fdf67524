// How much memory this process can still take before the system has to drive somebody out.
#pragma once

#include <cstdint>
#include <filesystem>

namespace kalibri {

/// Bytes: what the system calls available, or less where a control group (version 1 or 2) of this process leaves less;
/// files that are only cached count as free. 0 where the system does not say. root: where proc and sys are (for tests).
std::int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace kalibri
