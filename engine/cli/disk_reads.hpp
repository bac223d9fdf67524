// How much this process has made the disks read, as the kernel counts it: what the page cache had is not among it.
#pragma once

#include <cstdint>
#include <optional>

namespace kalibri::cli {

/// Bytes so far, of all threads, read ahead for it or past the page cache too. Nothing where the kernel does not count.
std::optional<std::int64_t> disk_read_bytes();

}  // namespace kalibri::cli
