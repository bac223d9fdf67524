// Where weights lie that are used as they are stored: what is asked for, and what it came to.
#pragma once

#include <cstdint>
#include <string>

namespace kalibri::runtime {

enum class WeightPlace : std::uint8_t {
  automatic,  // memory where all of them fit and that is measured to be worth it
  mapped,     // in the files' pages
  memory,     // in memory of their own, in large pages
};

struct WeightPlaceOptions {
  WeightPlace place = WeightPlace::mapped;
  int n_threads = 1;                 // that read them
  std::int64_t available_bytes = 0;  // for `automatic`; 0: what the system has now
};

struct WeightPlaceInfo {
  bool is_memory = false;
  std::int64_t read_bytes = 0;    // in memory since the model was loaded
  std::int64_t expert_bytes = 0;  // room for routed experts, which are read when they are first wanted
  std::int64_t needed_bytes = 0;  // what the automatic choice reckoned with, and what there was; 0: not asked
  std::int64_t available_bytes = 0;
  double gain = 0;      // how many times as fast memory is read as the files' pages; 0: not measured
  std::string refusal;  // why the automatic choice got no memory, although that much is available; empty: it did
};

}  // namespace kalibri::runtime
