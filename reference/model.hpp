// What a run needs of a model family. A family is one file that fills this in; the run loop, the dump and the handling
// of experts know no family.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/checkpoint.hpp"
#include "reference/prompt.hpp"
#include "reference/rounding.hpp"

namespace kalibri::reference {

/// Takes rows [first_row, first_row + rows.size(0)) of the current layer's tensor `name` of oracle/dump's list.
using Record = std::function<void(std::string_view name, std::int64_t first_row, const at::Tensor& rows)>;

struct Model {
  std::string model_type;
  std::int64_t n_layers = 0;
  std::int64_t hidden_size = 0;  // H
  std::int64_t n_streams = 1;    // R = n_streams * H
  std::int64_t vocab_size = 0;   // V
  std::int64_t max_position_embeddings = 0;
  std::vector<std::string_view> taps;  // the optional tensors that run_layer records
  StoredMatrix head;                   // [V, H]

  /// Embeddings of all prompts' tokens [N, H].
  std::function<at::Tensor(std::span<const Prompt>)> embed;
  /// Residual [N, R] before layer `layer` -> residual after it; records what it computes on the way.
  std::function<at::Tensor(std::int64_t layer, const at::Tensor& residual, std::span<const Prompt>, const Record&)>
      run_layer;
  /// Residual [N, R] after the last layer -> the head's input [N, H].
  std::function<at::Tensor(const at::Tensor& residual)> final_norm;
};

/// The model in `checkpoint`, by config.json's model_type, computed as `r` has it. All tensors are found and their
/// shapes checked. The checkpoint must outlive it. Throws Error.
Model open_model(const Checkpoint& checkpoint, const Rounding& r);

}  // namespace kalibri::reference
