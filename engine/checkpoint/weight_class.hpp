// The classes of weights that get one stored format together: what a converter's flags and a precision's keys speak of.
#pragma once

#include <cstdint>

namespace kalibri::checkpoint {

enum class WeightClass : std::uint8_t {
  none,     // keeps its own: routers and gates, norms, tables, constants
  dense,    // every other matrix that each token passes: attention, shared experts, mixers, projections
  experts,  // routed
  embed,
  head,
};

}  // namespace kalibri::checkpoint
