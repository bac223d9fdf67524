// What is run when nobody names prompts.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "engine/cli/prompts.hpp"
#include "engine/cli/text_prompts.hpp"
#include "engine/model/session.hpp"

namespace kalibri::cli {

struct DefaultPrompts {
  std::vector<Prompt> prompts;
  std::string source;  // how they are made, for a report
};

/// Of a checkpoint with a tokenizer.json: the texts of default_texts() that fit into the model's positions, and when
/// none of them is longer than the window and long enough for attention to leave blocks out, the longest of
/// seeded_prompts too. Of another: seeded_prompts. Throws what tokenize_texts throws.
DefaultPrompts default_prompts(const std::filesystem::path& checkpoint, const model::ModelInfo& info,
                               std::ostream* notes);

/// The texts of fixtures/prompts. They stand in the program, which may run where no source tree is; CMake writes the
/// file that holds them.
std::vector<NamedText> default_texts();

}  // namespace kalibri::cli
