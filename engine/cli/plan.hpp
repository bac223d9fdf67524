// What a footprint means for a given memory: how many experts a layer can keep, and what a token then takes at the
// machine's ceilings. Numbers alone; it reads and prints nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/footprint.hpp"

namespace kalibri::cli {

/// What a machine can do at most, a second.
struct Ceilings {
  double memory_bytes = 23e9;  // read by all threads
  double disk_bytes = 0.58e9;  // read past the page cache, sustained
  double operations = 110e9;   // f32 multiplications and additions in products of many tokens
  bool is_measured = false;    // otherwise: two cores of an AMD Zen 3 with a virtual disk
};

enum class Bottleneck { disk, memory, arithmetic };

/// A token of an answer when each layer keeps n_slots experts, and any expert is as likely as any other.
struct Decode {
  std::int64_t n_slots = 0;
  double hit_rate = 0;
  double disk_s = 0;  // for each token
  double memory_s = 0;
  double arithmetic_s = 0;
  Bottleneck bottleneck = Bottleneck::memory;
  /// Reading beside computing all the time, and never.
  [[nodiscard]] double best_rate() const;
  [[nodiscard]] double worst_rate() const;
};

/// The rate at which a prompt is read, chunk by chunk, under the same conditions.
struct Prefill {
  double disk_s = 0;  // for each token
  double memory_s = 0;
  double arithmetic_s = 0;
  Bottleneck bottleneck = Bottleneck::arithmetic;
  [[nodiscard]] double best_rate() const;
};

struct Plan {
  std::int64_t ram_bytes = 0;
  std::int64_t snapshot_bytes = 0;  // copies of the state, from which a next prompt can begin
  std::int64_t program_bytes = 0;   // code, libraries, stacks
  std::int64_t fixed_bytes = 0;     // all that is needed but for experts
  std::int64_t n_slots = 0;         // experts that each layer keeps; the text says more where no cache can be
  std::int64_t cache_bytes = 0;
  std::int64_t missing_bytes = 0;   // above 0: it does not fit
  std::int64_t slot_row_bytes = 0;  // one more expert in each layer
};

/// What fits into ram_bytes; wanted_slots: as many slots as are asked for instead of as many as fit.
Plan make_plan(const model::Footprint& footprint, std::int64_t ram_bytes, std::optional<std::int64_t> wanted_slots);

Decode predict_decode(const model::Footprint& footprint, const Ceilings& ceilings, std::int64_t n_slots);
Prefill predict_prefill(const model::Footprint& footprint, const Ceilings& ceilings, std::int64_t n_slots,
                        std::int64_t chunk);

/// Larger memories than the plan's, up to one that holds every expert; none where no cache can be.
std::vector<std::int64_t> further_memory(const model::Footprint& footprint, const Plan& plan);

}  // namespace kalibri::cli
