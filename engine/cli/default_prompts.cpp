#include "engine/cli/default_prompts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cli/seeded_prompts.hpp"

namespace kalibri::cli {

namespace {

std::int64_t n_tokens(const Prompt& prompt) { return static_cast<std::int64_t>(prompt.tokens.size()); }

}  // namespace

DefaultPrompts default_prompts(const std::filesystem::path& checkpoint, const model::ModelInfo& info,
                               std::ostream* notes) {
  if (!std::filesystem::exists(checkpoint / "tokenizer.json")) return {seeded_prompts(info), kSeededPromptsText};
  DefaultPrompts chosen{tokenize_texts(default_texts(), checkpoint, info, notes),
                        "the program's own texts, as the checkpoint's tokenizer.json has them"};
  std::vector<Prompt>& prompts = chosen.prompts;
  std::erase_if(prompts, [&](const Prompt& prompt) { return n_tokens(prompt) > info.max_positions; });
  const std::int64_t needed = std::max(info.window + 1, info.chooses_from);
  if (std::ranges::none_of(prompts, [&](const Prompt& prompt) { return n_tokens(prompt) >= needed; })) {
    prompts.push_back(seeded_prompts(info).back());
    chosen.source +=
        fmt::format("; and, none having {} tokens, {}: {}", needed, prompts.back().name, kSeededPromptsText);
  }
  return chosen;
}

}  // namespace kalibri::cli
