#include "engine/base/available_memory.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace kalibri {

namespace {

namespace fs = std::filesystem;

// More than any machine has, and few enough that sums do not overflow: version 1 writes 2^63 - 4096 for "no limit".
constexpr std::int64_t kMost = std::int64_t{1} << 60;

/// The file's number; nothing where there is none ("max").
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return std::min(number, kMost);
  return {};
}

/// The number behind a name, of lines NAME NUMBER.
std::optional<std::int64_t> number_of(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::int64_t number = 0;
    if (words >> word >> number && word == name) return std::min(number, kMost);
  }
  return {};
}

/// What the two versions of control groups call alike things.
struct GroupFiles {
  const char* limits[2];  // the smaller one counts: what grows beyond memory.high is slowed down until it is reclaimed
  const char* usage;
  const char* cached[2];
};
constexpr GroupFiles kVersion1 = {{"memory.limit_in_bytes", "memory.limit_in_bytes"},
                                  "memory.usage_in_bytes",
                                  {"total_inactive_file", "total_active_file"}};
constexpr GroupFiles kVersion2 = {{"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};

/// What is left of the limit of one group; nothing where it has none.
std::optional<std::int64_t> left_in(const fs::path& group, const GroupFiles& files) {
  std::int64_t limit = kMost;
  for (const char* name : files.limits) limit = std::min(limit, number_in(group / name).value_or(kMost));
  const auto usage = number_in(group / files.usage);
  if (limit == kMost || !usage) return {};
  std::int64_t left = limit - *usage;
  for (const char* name : files.cached) left += number_of(group / "memory.stat", name).value_or(0);
  return std::max<std::int64_t>(left, 0);
}

/// The least of the group and those that it is in, up to where they are mounted.
std::int64_t least_left(std::int64_t available, const fs::path& mounted, const std::string& group,
                        const GroupFiles& files) {
  for (fs::path at = fs::path(group).relative_path();; at = at.parent_path()) {
    available = std::min(available, left_in(mounted / at, files).value_or(available));
    if (at.empty()) return available;
  }
}

}  // namespace

std::int64_t available_memory(const fs::path& root) {
  const auto in_kib = number_of(root / "proc/meminfo", "MemAvailable:");
  if (!in_kib) return 0;
  std::int64_t available = *in_kib * 1024;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // ID:CONTROLLERS:PATH
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      available = least_left(available, root / "sys/fs/cgroup", group, kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      available = least_left(available, root / "sys/fs/cgroup/memory", group, kVersion1);
    }
  }
  return available;
}

}  // namespace kalibri
