// Lists what a file holds below a group, trusting nothing: links that lead elsewhere, cycles, data that are not there.
// It knows HDF5 and no names of the dump format. Private to this folder.
#pragma once

#include <string>
#include <vector>

#include "oracle/dump/hdf5.hpp"
#include "oracle/dump/reader.hpp"

namespace kalibri::dump {

/// A group or dataset.
struct Node {
  std::string path;  // below the group scanned
  bool is_group = false;
  DatasetInfo info;     // of a dataset without a problem
  std::string problem;  // why a dataset cannot be read: type, rank, filter, missing data; empty when it can
};

/// Limits of a dataset that is read, far above any model and low enough that no claim of a file makes us allocate much.
inline constexpr std::int64_t kMaxRows = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxRowElements = std::int64_t{1} << 24;

/// All nodes below `group`, groups before their members; members in the order they were made in if the group has it,
/// else by name. `where` begins messages. Throws Error on a link that is not a plain one, a name that is no text, a
/// group found twice, and what HDF5 cannot read.
std::vector<Node> scan(hid_t group, const std::string& where);

}  // namespace kalibri::dump
