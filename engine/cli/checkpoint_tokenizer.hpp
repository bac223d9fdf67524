// The tokenizer that a checkpoint was published with.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

#include "engine/model/session.hpp"
#include "engine/text/tokenizer.hpp"

namespace kalibri::cli {

/// tokenizer.json of the directory `checkpoint`. What it has to say goes to `notes` (null: nowhere); `otherwise` ends
/// the message when there is none that fits ("or give ids with --tokens"). Throws Error(file | format | config): not
/// there, refused, or more ids than the model has.
text::Tokenizer load_tokenizer(const std::filesystem::path& checkpoint, const model::ModelInfo& info,
                               const std::string& otherwise, std::ostream* notes);

}  // namespace kalibri::cli
