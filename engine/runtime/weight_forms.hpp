// Gives each stored matrix in the form that the precision multiplies with: as stored, or made once (expanded, rounded,
// quantised). What was made is kept by layer, so that a run that goes layer by layer holds one layer's. It knows no
// tensor names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/base/anonymous_memory.hpp"
#include "engine/checkpoint/weight_class.hpp"
#include "engine/kernels/matrix_view.hpp"
#include "engine/runtime/precision.hpp"

namespace kalibri::runtime {

/// The layer number of matrices that belong to no layer.
inline constexpr std::int64_t kNoLayer = -1;

class WeightForms {
 public:
  /// forget(stored) lets go of the memory under a stored matrix, which stays readable: it is told of each that another
  /// form has been made of.
  explicit WeightForms(const Precision& precision, std::function<void(const kernels::MatrixView&)> forget = {})
      : precision_(precision), forget_(std::move(forget)) {}

  [[nodiscard]] const Precision& precision() const { return precision_; }

  /// Says of which class the matrix at `data` is; before any use. Those that nobody speaks of are of none: they are
  /// expanded with dense, and FP8 among them becomes bf16 where dense becomes bf16 or affine (as the converter has it),
  /// but they are never packed.
  void classify(const void* data, checkpoint::WeightClass weights) { classes_[data] = weights; }

  /// What `use` gives for `stored`.
  [[nodiscard]] WeightForm form_of(const kernels::MatrixView& stored) const;

  /// `stored` itself, or its other form (made at the first call). Valid until leave_layer(layer). Several threads may
  /// call it at once.
  kernels::MatrixView use(std::int64_t layer, const kernels::MatrixView& stored);

  /// out [n_cols] <- row `row` of `stored` in its form, decoded, without making the others.
  void decode_row(const kernels::MatrixView& stored, std::int64_t row, float* out) const;

  /// Frees what was made for the layer. Nobody may be using it.
  void leave_layer(std::int64_t layer);

 private:
  struct Made {
    std::once_flag once;
    AnonymousMemory bytes;
  };

  Precision precision_;
  std::function<void(const kernels::MatrixView&)> forget_;
  std::map<const void*, checkpoint::WeightClass> classes_;  // by stored data
  std::mutex mutex_;
  std::map<std::int64_t, std::map<const void*, std::unique_ptr<Made>>> made_;  // by layer and stored data
};

}  // namespace kalibri::runtime
