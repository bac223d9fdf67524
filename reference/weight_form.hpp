// The format that a run has weights in, whichever they are stored in: what a row of numbers becomes in it.
#pragma once

#include <span>

#include "reference/affine.hpp"

namespace kalibri::reference {

struct WeightForm {
  enum class Kind { native, f32, bf16, affine } kind = Kind::native;
  AffineFormat affine{};
  AffineRule rule = AffineRule::cpu;
  bool operator==(const WeightForm&) const = default;
};

/// Replaces a decoded row by what the form keeps of it. native and f32: all. bf16: rounded. affine: rounded to bf16,
/// quantised, its grid stored as bf16, and decoded again; bf16 alone where groups do not divide the row. Throws Error
/// when a number to be quantised is not finite.
void convert_row(const WeightForm& form, std::span<float> row);

}  // namespace kalibri::reference
