// Writes a trained model as a checkpoint of its family's released layout.
#pragma once

#include <filesystem>
#include <span>

#include "reference/training/layout.hpp"

namespace kalibri::reference::training {

/// Weights as `layout.format` says, or all of them in F32 (`exact`). `values` is as in the table. The folder must be
/// new or empty; config.json comes last. `tokenizer`, unless empty, is copied as tokenizer.json. Throws Error.
void export_checkpoint(const Layout& layout, std::span<const float> values, const std::filesystem::path& tokenizer,
                       const std::filesystem::path& directory, bool exact = false);

}  // namespace kalibri::reference::training
