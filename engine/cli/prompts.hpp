// Prompts as the command line takes them: files of token ids (text_prompts.hpp: as text).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/session.hpp"

namespace kalibri::cli {

struct Prompt {
  std::string name;
  std::vector<std::int32_t> tokens;
  std::string text_sha256;  // of its text; empty when it came as ids alone
};

/// {"name": [ids…] or {"tokens": [ids…], "text_sha256": "…"}, …}, in the file's order. Throws Error(file | input)
/// naming the file and the entry.
std::vector<Prompt> read_token_file(const std::filesystem::path& path);

/// Whether a dump takes it: UTF-8, not empty, not '.', without '/' and control characters.
bool is_prompt_name(std::string_view name);

/// Refuses what the model cannot run: no prompt, an empty one, ids outside the vocabulary, more tokens than it has
/// positions. Throws Error(input) naming the prompt.
void check_prompts(const std::vector<Prompt>& prompts, const model::ModelInfo& info);

}  // namespace kalibri::cli
