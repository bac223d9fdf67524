// `kalibri score`: how well a model answers prompts whose answers are known. Greedy; no text is sampled.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "engine/cli/expert_cache_flags.hpp"

namespace kalibri::cli {

struct ScoreOptions {
  std::string directory;  // the checkpoint
  std::string prompts;    // a line each: {"text": prompt, "answer": …, "kind": …, "language": …, "tools": […]?}
  std::string precision = "native";
  int n_threads = 0;  // 0 = one a core
  ExpertCacheFlags expert_cache;
  bool json = false;
};

/// Writes a row for each kind and language, and one for all: prompts; `exact`, the share of answers that greedy
/// decoding gives to the last token; of kinds "chat" and "tool" `form`, the share of replies that end by themselves and
/// have the parts of the expected one (reasoning, content, number of calls), and `calls`, the share with the expected
/// names and arguments; and the perplexity of prompt and answer, the first token aside. What is worth saying of the
/// expert cache goes to `notes`. Returns 0; throws Error naming the line at fault.
int score_command(const ScoreOptions& options, std::ostream& out, std::ostream& notes);

}  // namespace kalibri::cli
