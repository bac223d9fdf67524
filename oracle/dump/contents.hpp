// What a dump says about itself, checked: attributes, prompts, and that all shapes agree. Private to this folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "oracle/dump/hdf5.hpp"
#include "oracle/dump/reader.hpp"

namespace kalibri::dump {

struct Contents {
  Header header;
  std::int64_t peak_rss_bytes = 0;
  double wall_s = 0;
  std::vector<PromptInfo> prompts;
  std::vector<std::string> unknown;             // paths below /prompts
  std::map<std::string, DatasetInfo> datasets;  // readable ones by path below /prompts
};

/// Reads and checks everything but the numbers. `where` (the file's name) begins messages. Throws Error.
Contents read_contents(hid_t file, const std::string& where);

/// Rows [first_row, first_row + n_rows) of the dataset at `path` below `group` into `out`, as `type` in memory. The
/// rows exist and `out` has room. False when HDF5 failed.
bool read_rows(hid_t dataset, const DatasetInfo& info, std::int64_t first_row, std::int64_t n_rows, ElementType type,
               void* out);

}  // namespace kalibri::dump
