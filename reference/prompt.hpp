// The prompts of a run. Their rows lie one after the other in every tensor of the run: a layer is computed for all of
// them before the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace kalibri::reference {

struct Prompt {
  std::string name;
  std::vector<std::int32_t> tokens;
  std::string text_sha256;     // of its text; empty when it came as ids alone
  std::int64_t first_row = 0;  // of the run's tensors

  [[nodiscard]] std::int64_t n_rows() const { return static_cast<std::int64_t>(tokens.size()); }
  [[nodiscard]] std::int64_t end_row() const { return first_row + n_rows(); }
};

/// Reads {"name": [ids…] or {"tokens": [ids…], "text_sha256": "…"}, …}. Throws Error naming the file and the prompt: no
/// prompts, a name that the dump cannot hold, no tokens, more than `max_tokens`, an id outside [0, vocab_size).
std::vector<Prompt> read_prompts(const std::filesystem::path& path, std::int64_t vocab_size, std::int64_t max_tokens);

/// All rows of a run.
std::int64_t count_rows(std::span<const Prompt> prompts);

}  // namespace kalibri::reference
