// What the system holds of files in memory, and how a bench makes it forget them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kalibri::cli {

struct PageCacheDrop {
  std::int64_t bytes = 0;       // of the files
  std::int64_t bytes_left = 0;  // of those, still in memory afterwards
};

/// Asks the system to forget the files' pages. Those that are mapped somewhere stay, and those of a file system that
/// lies in memory; of a file that the user may not write the system does not tell, it counts as left. Throws
/// Error(file) for one that cannot be looked at.
PageCacheDrop drop_from_page_cache(const std::vector<std::filesystem::path>& files);

}  // namespace kalibri::cli
