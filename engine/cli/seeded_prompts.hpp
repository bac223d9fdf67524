// Prompts of random token ids, the same on every machine: for a checkpoint without prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/cli/prompts.hpp"

namespace kalibri::cli {

/// How seeded_prompts makes them, for a report.
inline constexpr const char* kSeededPromptsText =
    "id i of the prompt of T tokens = floor(x V / 2^32), x = the high 32 bits of output i of SplitMix64 seeded with T";

/// n ids of [0, vocab_size), as kSeededPromptsText says for any seed.
std::vector<std::int32_t> seeded_ids(std::uint64_t seed, std::int64_t n, std::int64_t vocab_size);

/// Prompts "seeded-T" for T = 1, 13, W and 2 W + 5 (W = info.window), ascending, each once. The last one is long enough
/// for attention that chooses blocks to have a choice, and none is longer than the model has positions.
std::vector<Prompt> seeded_prompts(const model::ModelInfo& info);

/// What read_token_file reads.
std::string token_file_text(const std::vector<Prompt>& prompts);

}  // namespace kalibri::cli
