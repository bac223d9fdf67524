#include "engine/cli/disk_reads.hpp"

#include <fstream>
#include <string>

namespace kalibri::cli {

std::optional<std::int64_t> disk_read_bytes() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  for (std::int64_t n = 0; counters >> name >> n;) {
    if (name == "read_bytes:") return n;
  }
  return {};
}

}  // namespace kalibri::cli
