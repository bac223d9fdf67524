// The weights of a SwiGLU expert, and how an MLX directory stacks those of all.
#pragma once

#include <string>
#include <vector>

#include "reference/stored_matrix.hpp"

namespace kalibri::reference {

struct Expert {
  StoredMatrix gate_proj;  // [I, H]
  StoredMatrix up_proj;    // [I, H]
  StoredMatrix down_proj;  // [H, I]
};

Expert in_form(const Expert& expert, const WeightForm& form);

/// Whether there are tensors below `stack` ("model.layers.0.mlp.switch_mlp."). Throws Error when there are also some
/// below `single` ("model.layers.0.mlp.experts.0.").
bool is_stacked(const Checkpoint& checkpoint, const std::string& stack, const std::string& single);

/// The experts in {gate,up}_proj.weight [E, I, H] and down_proj.weight [E, H, I] below `stack`. Throws Error.
std::vector<Expert> find_stacked_experts(const Checkpoint& checkpoint, const std::string& stack, std::int64_t n_experts,
                                         std::int64_t width, std::int64_t hidden_size);

}  // namespace kalibri::reference
