// Buffers that a session keeps from call to call: they grow to just the largest chunk seen and stay.
#pragma once

#include <cstdint>

#include "engine/base/aligned.hpp"

namespace kalibri::model {

class Buffer {
 public:
  /// At least n floats; contents are whatever the last user left, as long as it needed no fewer.
  float* floats(std::int64_t n) {
    if (static_cast<std::int64_t>(values_.size()) < n) {
      values_ = {};  // first, so that memory never holds both
      values_ = AlignedFloats(static_cast<std::size_t>(n));
    }
    return values_.data();
  }

 private:
  AlignedFloats values_;
};

}  // namespace kalibri::model
