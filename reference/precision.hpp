// The numbers' precision as one text, as `kalibri --precision` has it too. The same text means the same arithmetic on
// both sides, which share no code.
#pragma once

#include <string>
#include <string_view>

#include "reference/weight_form.hpp"

namespace kalibri::reference {

enum class Compute {
  f32,          // nothing is rounded
  bf16,         // the output of every operation is
  bf16_served,  // the same, but expert weights, the sum of experts until its end, and logits stay f32
};

enum class Residual {
  f32,         // as summed
  bf16,        // rounded after each addition
  bf16_fused,  // the next norm reads the unrounded sum, the next addition its rounded value
};

enum class Activations {
  f32,
  fp8_dynamic,  // rounded to e4m3 before a product with FP8 weights as stored
  int16,        // rounded to integers before a product with affine weights
  int8,
};

struct Precision {
  Compute compute = Compute::f32;
  Residual residual = Residual::f32;
  WeightForm dense, experts, embed, head;
  Activations activations = Activations::f32;
  bool rounds_kv = false;  // keys and values, to bf16

  bool operator==(const Precision&) const = default;
};

/// A preset (exact, native, mixed-4-8, bf16, production), or KEY=VALUE,… with each key at most once: compute = f32,
/// bf16, bf16-served; residual = f32, bf16, bf16-fused; dense, experts, embed, head = native, f32, bf16,
/// affine:BITS:GROUP[:gpu]; activations = f32, fp8-dynamic, int16, int8; kv = f32, bf16; router = f32. The first of
/// each, or of the forms native, is what a key that is not named has. Throws Error that lists what is known.
Precision parse_precision(std::string_view text);

/// The canonical text: a preset's name, or the keys that are not at their default, in the order above.
std::string precision_text(const Precision& precision);

}  // namespace kalibri::reference
