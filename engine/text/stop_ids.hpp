// The ids at which a generation ends, as a checkpoint's directory says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "engine/text/tokenizer.hpp"

namespace kalibri::text {

/// eos_token_id of generation_config.json (a number or a list), else the id of eos_token of tokenizer_config.json (a
/// string, or an object with `content`), each once, in the file's order. Throws Error(format | config) naming the file:
/// neither is there, an id is not assigned, a token is not known.
std::vector<std::int32_t> stop_ids(const std::filesystem::path& directory, const Tokenizer& tokenizer);

}  // namespace kalibri::text
