// Teacher forcing: the residuals of another dump, as the inputs of the layers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "oracle/dump/reader.hpp"
#include "reference/options.hpp"
#include "reference/prompt.hpp"
#include "reference/tensor.hpp"

namespace kalibri::reference {

class Inputs {
 public:
  /// Opens `path`. Every prompt must be there with the same tokens and with all that `layers` of a model with n_streams
  /// of width hidden_size need. Throws Error or dump::Error naming what is missing or differs. `prompts` outlives it.
  Inputs(const std::filesystem::path& path, std::span<const Prompt> prompts, LayerRange layers, bool with_last_residual,
         std::int64_t n_streams, std::int64_t hidden_size);

  /// The residual [N, R] before `layer`: the other dump's residual after the layer before it; before layer 0 its
  /// embedding, repeated for each stream. f64 takes an f32 dump's numbers exactly, f32 rounds an f64 dump's once.
  [[nodiscard]] at::Tensor residual_before(std::int64_t layer, at::ScalarType dtype) const;

 private:
  [[nodiscard]] std::int64_t width_before(std::int64_t layer) const {
    return layer == 0 ? hidden_size_ : n_streams_ * hidden_size_;
  }

  dump::Reader reader_;
  std::span<const Prompt> prompts_;
  std::int64_t n_streams_;
  std::int64_t hidden_size_;
};

}  // namespace kalibri::reference
