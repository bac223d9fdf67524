#include "engine/cli/peak_memory.hpp"

#include <sys/resource.h>

namespace kalibri::cli {

std::int64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;  // Linux counts KiB
}

}  // namespace kalibri::cli
