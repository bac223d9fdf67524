// Which rows of the logits a run keeps: the text of --positions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kalibri::cli {

/// "all", "none", "last:N", or a list such as "0,5,7-12" -> positions of a prompt of n_tokens, ascending, each once.
/// Throws Error(usage) naming the prompt.
std::vector<std::int32_t> parse_positions(const std::string& text, std::int64_t n_tokens, const std::string& prompt);

}  // namespace kalibri::cli
