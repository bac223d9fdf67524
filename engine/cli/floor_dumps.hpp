// The dumps that --reference64 names: the reference in fp64, from which floors are measured.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oracle/dump/reader.hpp"

namespace kalibri::cli {

struct FloorDumps {
  std::unique_ptr<const dump::Reader> chained, teacher_forced;  // null: not given
};

/// Opens at most one dump of each mode. Throws Error(input) for another mode and for a second one of the same,
/// dump::Error for what is no dump.
FloorDumps open_floor_dumps(const std::vector<std::string>& paths);

}  // namespace kalibri::cli
