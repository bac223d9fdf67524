// Prompts as the command line takes them: files of token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/model/session.hpp"

namespace kalibri::cli {

struct Prompt {
  std::string name;
  std::vector<std::int32_t> tokens;
  std::string text_sha256;  // empty when the prompt came as ids
};

/// {"name": [ids…], …}, in the file's order. Throws Error(file | input) naming the file and the entry.
std::vector<Prompt> read_token_file(const std::filesystem::path& path);

/// Refuses what the model cannot run: no prompt, an empty one, ids outside the vocabulary, more tokens than it has
/// positions. Throws Error(input) naming the prompt.
void check_prompts(const std::vector<Prompt>& prompts, const model::ModelInfo& info);

}  // namespace kalibri::cli
