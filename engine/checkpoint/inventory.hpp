// A checkpoint directory against what its model family asks for: what is there, missing, of the wrong shape or dtype,
// or not known. It knows no family.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/family.hpp"

namespace kalibri::checkpoint {

/// Sums over the tensors of one kind that are there.
struct KindSum {
  std::int64_t n_tensors = 0;
  std::int64_t n_elements = 0;
  std::int64_t n_bytes = 0;
  std::set<Dtype> dtypes;
};

struct Inventory {
  std::string model_type;
  std::string summary;  // the architecture in one line
  std::map<TensorKind, KindSum> kinds;
  std::map<std::string, KindSum> left_alone;  // by prefix: tensors that the family knows and this program does not read
  std::vector<Problem> problems;        // missing, wrong shape or dtype, scale missing, bad values (when looked for)
  std::vector<std::string> unexpected;  // tensors that the family does not know
  std::vector<std::string> notes;  // config keys unknown or defaulted, files left aside, dtypes told otherwise there

  /// Elements of all weights; scales, constants, and tensors left alone or not known are no parameters.
  [[nodiscard]] std::int64_t n_parameters() const;
};

/// Compares the checkpoint with what its config.json asks for. `check_values`: also read every tensor that the
/// family asks for, and find NaN and infinities. Throws Error(config) when config.json itself cannot be used or names
/// an unknown family.
Inventory take_inventory(const Checkpoint& checkpoint, bool check_values);

}  // namespace kalibri::checkpoint
