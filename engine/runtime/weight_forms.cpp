#include "engine/runtime/weight_forms.hpp"

#include "engine/kernels/codec.hpp"

namespace kalibri::runtime {

kernels::MatrixView WeightForms::use(std::int64_t layer, const kernels::MatrixView& stored) {
  if (!expands() || stored.format == kernels::Format::f32) return stored;
  Expansion* expansion = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Expansion>& slot = expansions_[layer][stored.data];
    if (slot == nullptr) slot = std::make_unique<Expansion>();
    expansion = slot.get();
  }
  std::call_once(expansion->made, [&] {
    expansion->values =
        std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(stored.n_rows * stored.n_cols));
    for (std::int64_t row = 0; row < stored.n_rows; ++row) {
      kernels::decode_row(stored, row, expansion->values.get() + row * stored.n_cols);
    }
  });
  return {kernels::Format::f32, stored.n_rows, stored.n_cols, expansion->values.get(), nullptr};
}

void WeightForms::leave_layer(std::int64_t layer) {
  const std::lock_guard lock(mutex_);
  expansions_.erase(layer);
}

}  // namespace kalibri::runtime
