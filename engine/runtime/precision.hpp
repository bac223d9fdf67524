// The numbers' precision as one text ("exact", "native"). Equal texts mean equal bits.
#pragma once

#include <string>
#include <string_view>

namespace kalibri::runtime {

/// Where the weights' values come from. More keys join this struct as formats do.
struct Precision {
  enum class Weights { native, f32 } weights = Weights::native;  // native: multiplied as stored; f32: expanded once

  /// Presets: "exact" (weights expanded to f32 once) and "native" (weights as stored, f32 activations).
  /// Throws Error(usage) that lists what is known.
  static Precision parse(std::string_view text);
  /// The canonical text; parse(text()) gives the same value.
  [[nodiscard]] std::string text() const;
};

}  // namespace kalibri::runtime
