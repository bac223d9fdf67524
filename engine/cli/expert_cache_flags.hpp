// What --expert-cache and --expert-reads mean, for every command that has them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/model/session.hpp"

namespace kalibri::cli {

struct ExpertCacheFlags {
  std::string size;            // "64": experts kept a layer; "12G": memory; empty: no cache, all experts are mapped
  std::string reads = "auto";  // HOW, or HOW:BY
};

/// Adds both flags to a command of the command line.
template <typename App>
void add_expert_cache(App& command, ExpertCacheFlags& flags) {
  auto* cache = command.add_option("--expert-cache", flags.size,
                                   "Read routed experts from disk when they are wanted and keep so many in each layer "
                                   "(64), or what fits into so much memory (512M, 12G; never changes a bit)");
  cache->check([](const std::string& size) { return std::string(size.empty() ? "empty, expected 64 or 12G" : ""); });
  command
      .add_option(
          "--expert-reads", flags.reads,
          "How: auto (measured), buffered or direct (past the page cache); :uring, :threads or :blocking behind "
          "it says by whom")
      ->needs(cache)
      ->capture_default_str();
}

/// Throws Error(usage) that says what is expected.
runtime::ExpertCacheOptions expert_cache(const ExpertCacheFlags& flags);

/// With a cache: a line that says how large it is and how it reads, and its warnings.
void tell_expert_cache(const model::Model& model, std::ostream& notes);
/// Lines, of a cache that is too small to be one, and of one for which less memory is available.
std::string expert_cache_warnings(const runtime::ExpertCacheInfo& cache, std::int64_t top_k,
                                  std::int64_t available_bytes);

/// For people and for programs: what happened while n_threads computed. The text begins with "; ".
std::string expert_statistics_text(const runtime::ExpertStatistics& statistics, int n_threads);
nlohmann::ordered_json expert_statistics_json(const runtime::ExpertStatistics& statistics, int n_threads);
nlohmann::ordered_json expert_cache_json(const runtime::ExpertCacheInfo& cache);

}  // namespace kalibri::cli
