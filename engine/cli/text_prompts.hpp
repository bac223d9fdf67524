// Prompts that come as text: raw, without a template and without a token at their ends, as the ids of the checkpoint's
// own tokenizer.json.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "engine/cli/prompts.hpp"
#include "engine/model/session.hpp"

namespace kalibri::cli {

struct NamedText {
  std::string name;  // of its prompt
  std::string text;
};

/// The bytes of a text file. Throws Error(file | input) naming it: no regular file, empty, longer than a tokenizer
/// takes, no UTF-8.
std::string read_text_file(const std::string& file);

/// The texts of files, byte for byte; a prompt is called what its file is, without folder and ending. Throws Error(file
/// | input) naming the file: as read_text_file, no name for a prompt, or the name of an earlier one.
std::vector<NamedText> read_text_files(const std::vector<std::string>& files);

/// The texts as prompts of a checkpoint, each with the SHA-256 of its bytes. What the tokenizer's file has to say goes
/// to `notes` (null: nowhere). Throws Error(file | format | config): no tokenizer.json, one that is refused, or one
/// with more ids than the model has.
std::vector<Prompt> tokenize_texts(const std::vector<NamedText>& texts, const std::filesystem::path& checkpoint,
                                   const model::ModelInfo& info, std::ostream* notes);

/// read_text_files and tokenize_texts.
std::vector<Prompt> read_text_prompts(const std::vector<std::string>& files, const std::filesystem::path& checkpoint,
                                      const model::ModelInfo& info, std::ostream* notes);

}  // namespace kalibri::cli
