// The numbers' precision as one text ("exact", "native", "dense=affine:8:64,experts=affine:4:64"). Equal texts mean
// equal bits.
#pragma once

#include <string>
#include <string_view>

#include "engine/checkpoint/weight_class.hpp"
#include "engine/kernels/codec.hpp"
#include "engine/runtime/arithmetic.hpp"

namespace kalibri::runtime {

/// The format that a class of weights is multiplied in.
struct WeightForm {
  enum class Kind : std::uint8_t {
    native,  // as stored, in place
    f32,     // expanded
    bf16,    // decoded and rounded
    affine,  // decoded, rounded to bf16 and quantised, as the converter does; bf16 where groups do not divide a row
  } kind = Kind::native;
  kernels::AffineTarget affine = {};
  bool operator==(const WeightForm&) const = default;
};

struct Precision {
  WeightForm dense, experts, embed, head;
  Arithmetic arithmetic = {};

  /// What a class is multiplied in. Weights of no class keep their own format; `WeightForms` has the exceptions.
  [[nodiscard]] const WeightForm& of(checkpoint::WeightClass weights) const;

  /// A preset, or KEY=VALUE,... with each key at most once: dense, experts, embed, head = native (what is not named),
  /// f32, bf16 or affine:BITS:GROUP[:gpu]; compute = f32, bf16, bf16-served; residual = f32, bf16, bf16-fused;
  /// activations = f32, fp8-dynamic, int16, int8; kv = f32, bf16; router = f32. Presets: "exact" (weights expanded to
  /// f32 once), "native" (weights as stored), "mixed-4-8" (what `kalibri convert` writes by default), all computing in
  /// f32; "bf16" (a model all in bf16) and "production" (as serving stacks run an FP8 checkpoint). Throws Error(usage)
  /// that lists what is known.
  static Precision parse(std::string_view text);
  /// The canonical text: a preset's name, or the keys that are not at their default, in the order compute,
  /// residual, dense, experts, embed, head, activations, kv. parse(text()) gives the
  /// same value.
  [[nodiscard]] std::string text() const;
  bool operator==(const Precision&) const = default;
};

}  // namespace kalibri::runtime
