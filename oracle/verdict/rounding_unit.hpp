// How coarsely a precision rounds, read off its text alone: what a dump's header says. It knows the keys and presets of
// the precision language, and no more of who computes.
#pragma once

#include <string_view>

namespace kalibri::oracle {

/// The relative error of a row in which every number was rounded to the other of two neighbours, at least, in the
/// coarsest format that `precision` rounds results or activations to; 0 when it rounds none, or is another program's
/// text.
/// bf16: 2^-8, half its spacing at 1. e4m3: 2^-4, the same. Integers of at most m: 1 / (2 m) of the largest number of
/// their group, which is about 4 times as large as the group's root mean square: 2^-6 (int8), 2^-14 (int16).
double rounding_unit(std::string_view precision);

}  // namespace kalibri::oracle
