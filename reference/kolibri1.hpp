// Kolibri 1: the released mixture-of-experts model, forward pass over whole prompts.
#pragma once

#include "reference/model.hpp"

namespace kalibri::reference {

/// Throws Error: config.json asks for what Kolibri 1 does not do; a tensor is missing or of another shape or dtype.
Model open_kolibri1(const Checkpoint& checkpoint, const Rounding& r);

}  // namespace kalibri::reference
