// The layouts of the models that can be trained, without LibTorch's headers.
#pragma once

#include <string>

#include "reference/training/layout.hpp"

namespace kalibri::reference::training {

/// Throws Error for unknown names.
Layout layout_of(const std::string& model_type, const std::string& size);

}  // namespace kalibri::reference::training
