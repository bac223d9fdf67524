// Gives each stored matrix in the form that the precision multiplies with: as stored, or expanded to f32 once.
// Expansions are kept by layer, so that a run that goes layer by layer holds one layer's. It knows no tensor names.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/kernels/matrix_view.hpp"
#include "engine/runtime/precision.hpp"

namespace kalibri::runtime {

/// The layer number of matrices that belong to no layer.
inline constexpr std::int64_t kNoLayer = -1;

class WeightForms {
 public:
  explicit WeightForms(const Precision& precision) : precision_(precision) {}

  /// False: `use` gives everything as stored.
  [[nodiscard]] bool expands() const { return precision_.weights != Precision::Weights::native; }

  /// `stored` itself, or its f32 expansion (row-major, made at the first call). Valid until leave_layer(layer). Several
  /// threads may call it at once.
  kernels::MatrixView use(std::int64_t layer, const kernels::MatrixView& stored);

  /// Frees the layer's expansions. Nobody may be using them.
  void leave_layer(std::int64_t layer);

 private:
  struct Expansion {
    std::once_flag made;
    std::unique_ptr<float[]> values;
  };

  Precision precision_;
  std::mutex mutex_;
  std::map<std::int64_t, std::map<const void*, std::unique_ptr<Expansion>>> expansions_;  // by layer and stored data
};

}  // namespace kalibri::runtime
