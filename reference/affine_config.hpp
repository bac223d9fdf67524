// config.json's `quantization`: which modules of an MLX directory are packed, and how. Source: ml-explore/mlx-lm,
// mlx_lm/utils.py, load_model.
#pragma once

#include <optional>
#include <string>

#include "reference/affine.hpp"
#include "reference/checkpoint.hpp"

namespace kalibri::reference {

/// Whether config.json has the block; it is then read as a whole, names only modules that are there, and
/// `quantization_config` beside it repeats it.
/// Throws Error naming the key that is wrong.
bool has_affine_block(const Checkpoint& checkpoint);

/// How the module `module` ("model.layers.0.mlp.switch_mlp.up_proj") is packed: by its entry in the block, else as the
/// block has it. Nothing when its weight is no U32 and it has neither scales nor biases, whatever the block says.
/// Throws Error where it is packed and the block denies it or says nothing of how.
std::optional<AffineFormat> find_affine_format(const Checkpoint& checkpoint, const std::string& module);

}  // namespace kalibri::reference
