#include "engine/cli/expert_cache_flags.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <ostream>

#include "engine/base/available_memory.hpp"
#include "engine/base/error.hpp"
#include "engine/cli/byte_size.hpp"

namespace kalibri::cli {

namespace {

using nlohmann::ordered_json;
using runtime::ExpertStatistics;

std::optional<std::int64_t> parse_positive(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 1) return {};
  return value;
}

[[noreturn]] void refuse_reads(const std::string& text) {
  throw Error(ErrorCode::usage, fmt::format("--expert-reads: '{}', expected auto, buffered or direct, and :uring, "
                                            ":threads or :blocking behind it if need be",
                                            text));
}

double hit_rate(const ExpertStatistics& s) {
  const std::int64_t n = s.n_hits + s.n_misses;
  return n == 0 ? 1 : static_cast<double>(s.n_hits) / static_cast<double>(n);
}

double bytes_per_s(const ExpertStatistics& s) {
  return s.read_s > 0 ? static_cast<double>(s.bytes_read) / s.read_s : 0;
}

double in_gb(std::int64_t n_bytes) { return static_cast<double>(n_bytes) / 1e9; }

}  // namespace

runtime::ExpertCacheOptions expert_cache(const ExpertCacheFlags& flags) {
  runtime::ExpertCacheOptions options;
  if (flags.size.empty()) return options;
  if (const auto n_slots = parse_positive(flags.size)) {
    options.n_slots = *n_slots;
  } else if (const auto n_bytes = parse_bytes(flags.size)) {
    options.n_bytes = *n_bytes;
  } else {
    throw Error(ErrorCode::usage, fmt::format("--expert-cache: '{}', expected experts a layer, for example 64, or "
                                              "memory, for example 512M or 12G",
                                              flags.size));
  }
  const std::size_t colon = flags.reads.find(':');
  const std::string how = flags.reads.substr(0, colon);
  if (how == "buffered") {
    options.mode = runtime::ReadMode::buffered;
  } else if (how == "direct") {
    options.mode = runtime::ReadMode::direct;
  } else if (how != "auto") {
    refuse_reads(flags.reads);
  }
  if (colon == std::string::npos) return options;
  const std::string by = flags.reads.substr(colon + 1);
  if (by == "uring") {
    options.engine = ReadEngine::uring;
  } else if (by == "threads") {
    options.engine = ReadEngine::threads;
  } else if (by == "blocking") {
    options.engine = ReadEngine::blocking;
  } else {
    refuse_reads(flags.reads);
  }
  return options;
}

void tell_expert_cache(const model::Model& model, std::ostream& notes) {
  const auto cache = model.expert_cache();
  if (!cache) return;
  const bool is_measured = cache->direct_rate > 0;
  notes << fmt::format("kalibri: expert cache: {} of {} experts in each of {} layers, {}; {} reads by {}{}\n",
                       cache->n_slots, cache->n_experts, cache->n_layers,
                       bytes_text(cache->n_layers * cache->n_slots * cache->slot_bytes),
                       cache->is_direct ? "direct" : "buffered", cache->engine,
                       is_measured ? fmt::format(" (measured: direct {:.2f} GB/s, buffered {:.2f})",
                                                 cache->direct_rate / 1e9, cache->buffered_rate / 1e9)
                                   : "");
  notes << expert_cache_warnings(*cache, model.info().top_k, available_memory());
}

std::string expert_cache_warnings(const runtime::ExpertCacheInfo& cache, std::int64_t top_k,
                                  std::int64_t available_bytes) {
  std::string lines;
  if (cache.n_slots < top_k) {
    lines += fmt::format(
        "kalibri: warning: a token needs {} experts in each layer, but the cache keeps {}: most are read anew; "
        "--expert-cache {} or more keeps them\n",
        top_k, cache.n_slots, top_k);
  }
  const std::int64_t row_bytes = cache.n_layers * cache.slot_bytes;
  if (available_bytes > 0 && cache.n_slots * row_bytes > available_bytes) {
    lines += fmt::format(
        "kalibri: warning: the cache grows to {}, but {} of memory are available: the system may end the program; "
        "'kalibri plan' says what fits\n",
        bytes_text(cache.n_slots * row_bytes), bytes_text(available_bytes));
  }
  return lines;
}

std::string expert_statistics_text(const ExpertStatistics& s, int n_threads) {
  return fmt::format("; experts: {} hits, {} misses ({:.1f} % hits), {:.3f} GB read at {:.2f} GB/s, waited {:.3f} s",
                     s.n_hits, s.n_misses, 100 * hit_rate(s), in_gb(s.bytes_read), bytes_per_s(s) / 1e9,
                     s.wait_s / n_threads);
}

ordered_json expert_statistics_json(const ExpertStatistics& s, int n_threads) {
  return {{"hits", s.n_hits},
          {"misses", s.n_misses},
          {"hit_rate", hit_rate(s)},
          {"bytes_read", s.bytes_read},
          {"bytes_per_s", bytes_per_s(s)},
          {"read_s", s.read_s},
          {"wait_s", s.wait_s / n_threads}};
}

ordered_json expert_cache_json(const runtime::ExpertCacheInfo& cache) {
  return {{"slots", cache.n_slots},
          {"experts", cache.n_experts},
          {"layers", cache.n_layers},
          {"slot_bytes", cache.slot_bytes},
          {"reads", cache.is_direct ? "direct" : "buffered"},
          {"by", cache.engine}};
}

}  // namespace kalibri::cli
