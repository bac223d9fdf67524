// qwen4_exp (Qwen3.8-Flash-Next): the text model, forward pass over whole prompts.
#pragma once

#include "reference/model.hpp"

namespace kalibri::reference {

/// Throws Error: config.json asks for what is not implemented; a tensor is missing, of another shape or dtype, or
/// contradicts config.json.
Model open_qwen4_exp(const Checkpoint& checkpoint, const Rounding& r);

}  // namespace kalibri::reference
