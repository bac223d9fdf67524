// What is asked of a cache of experts that are read from disk, what it came to, and what it counted.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/read_queue.hpp"

namespace kalibri::runtime {

/// Through the system's page cache, past it (O_DIRECT), or what a short measurement finds faster.
enum class ReadMode : std::uint8_t { automatic, buffered, direct };

struct ExpertCacheOptions {
  std::int64_t n_slots = 0;  // experts kept in each layer; or
  std::int64_t n_bytes = 0;  // memory for all layers' slots. Both 0: no cache, experts are used where they are mapped
  ReadMode mode = ReadMode::automatic;
  ReadEngine engine = ReadEngine::automatic;
  bool is_optional = false;  // where experts are not used as they are stored: none, instead of an error
  [[nodiscard]] bool is_wanted() const { return n_slots > 0 || n_bytes > 0; }
};

struct ExpertCacheInfo {
  std::int64_t n_layers = 0;
  std::int64_t n_experts = 0;
  std::int64_t n_slots = 0;     // a layer
  std::int64_t slot_bytes = 0;  // the cache's memory is n_layers * n_slots * slot_bytes
  bool is_direct = false;
  const char* engine = "";   // who reads
  double buffered_rate = 0;  // bytes a second, measured; 0: not measured
  double direct_rate = 0;
};

/// Since the start. A difference of two is what happened between.
struct ExpertStatistics {
  std::int64_t n_hits = 0;    // experts that a layer wanted and had
  std::int64_t n_misses = 0;  // ... and had to read
  std::int64_t bytes_read = 0;
  double wait_s = 0;  // that threads stood waiting for experts, all threads' together
  double read_s = 0;  // that reads were under way

  friend ExpertStatistics operator+(const ExpertStatistics& a, const ExpertStatistics& b) {
    return {a.n_hits + b.n_hits, a.n_misses + b.n_misses, a.bytes_read + b.bytes_read, a.wait_s + b.wait_s,
            a.read_s + b.read_s};
  }
  friend ExpertStatistics operator-(const ExpertStatistics& a, const ExpertStatistics& b) {
    return {a.n_hits - b.n_hits, a.n_misses - b.n_misses, a.bytes_read - b.bytes_read, a.wait_s - b.wait_s,
            a.read_s - b.read_s};
  }
};

}  // namespace kalibri::runtime
