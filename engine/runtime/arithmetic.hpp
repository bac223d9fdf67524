// How a run computes, apart from the formats of its weights: what is rounded where. All f32 unless said otherwise.
#pragma once

#include <cstdint>

namespace kalibri::runtime {

struct Arithmetic {
  enum class Compute : std::uint8_t {
    f32,          // nothing is rounded
    bf16,         // each operation's output is rounded to bf16
    bf16_served,  // the same, but expert weights, sums over experts up to their one rounding, and logits stay f32
  } compute = Compute::f32;
  enum class Residual : std::uint8_t {
    f32,         // as summed
    bf16,        // rounded after each addition
    bf16_fused,  // fused add-and-norm: what follows norms the unrounded sum, and adds to the rounded one
  } residual = Residual::f32;
  enum class Activations : std::uint8_t {
    f32,
    fp8_dynamic,  // in front of FP8 weights: e4m3, a scale for each token and 128 columns
    int16,        // in front of affine weights: integers, a scale for each token and group
    int8,
  } activations = Activations::f32;
  enum class Kv : std::uint8_t {
    f32,
    bf16,  // keys and values are rounded before they are stored
  } kv = Kv::f32;

  [[nodiscard]] bool rounds() const { return compute != Compute::f32; }
  /// Also what serving stacks keep in f32.
  [[nodiscard]] bool rounds_all() const { return compute == Compute::bf16; }
  bool operator==(const Arithmetic&) const = default;
};

}  // namespace kalibri::runtime
