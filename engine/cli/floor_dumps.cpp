#include "engine/cli/floor_dumps.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace kalibri::cli {

FloorDumps open_floor_dumps(const std::vector<std::string>& paths) {
  FloorDumps dumps;
  for (const std::string& path : paths) {
    auto given = std::make_unique<const dump::Reader>(path);
    const std::string mode = given->header().mode;
    auto& place = mode == "chained" ? dumps.chained : dumps.teacher_forced;
    if (place != nullptr || (mode != "chained" && mode != "teacher-forced")) {
      throw Error(ErrorCode::input,
                  fmt::format("{}: mode {}: --reference64 takes one chained and one teacher-forced dump", path, mode));
    }
    place = std::move(given);
  }
  return dumps;
}

}  // namespace kalibri::cli
