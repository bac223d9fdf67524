// `kalibri bench`: how fast a checkpoint runs on this machine, where the time goes, and how near that is to what the
// memory allows.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "engine/cli/expert_cache_flags.hpp"

namespace CLI {
class App;
}

namespace kalibri::cli {

struct BenchOptions {
  std::string directory;  // the checkpoint
  std::string precision = "native";
  std::int64_t n_prompt = 512;  // tokens
  std::int64_t n_answer = 32;
  std::int64_t n_repeats = 3;
  std::int64_t chunk = 512;
  int n_threads = 0;  // 0 = one a core
  std::string weights = "auto";
  ExpertCacheFlags expert_cache;
  bool campaign = false;
  bool json = false;
  std::ostream* progress = nullptr;  // null: none
};

void add_bench_options(CLI::App& command, BenchOptions& options);

/// Times prompts of seeded ids and greedy answers and writes what came out with a row of Markdown, or JSON. Without
/// `campaign`: the same prompt, n_repeats times, each by a new session, after one that warms up; the memory's read rate
/// is measured between them. With it: the checkpoint's files are put out of the page cache, then the model is loaded
/// and come a request, its identical repeat, and four others, in one session that goes on as a server's would. `notes`:
/// what the expert cache came to, and files that stayed in the page cache. Throws Error. Returns 0.
int bench_command(const BenchOptions& options, std::ostream& out, std::ostream& notes);

}  // namespace kalibri::cli
