#include "engine/cli/weight_place_flag.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

double in_gb(std::int64_t n_bytes) { return static_cast<double>(n_bytes) / 1e9; }

}  // namespace

runtime::WeightPlaceOptions weight_place(const std::string& place, int n_threads) {
  using runtime::WeightPlace;
  if (place == "auto") return {WeightPlace::automatic, n_threads, 0};
  if (place == "mapped") return {WeightPlace::mapped, n_threads, 0};
  if (place == "memory") return {WeightPlace::memory, n_threads, 0};
  throw Error(ErrorCode::usage, fmt::format("--weights: '{}', expected auto, mapped or memory", place));
}

std::string weight_place_text(const runtime::WeightPlaceInfo& info) {
  if (info.is_memory) {
    return fmt::format("in memory ({:.2f} GB read, room for {:.2f} GB of experts)", in_gb(info.read_bytes),
                       in_gb(info.expert_bytes));
  }
  if (!info.refusal.empty()) return fmt::format("mapped ({})", info.refusal);
  if (info.needed_bytes > info.available_bytes) {
    return fmt::format("mapped (a run in memory takes {:.2f} GB, {:.2f} are available)", in_gb(info.needed_bytes),
                       in_gb(info.available_bytes));
  }
  return info.gain > 0 ? fmt::format("mapped (memory is read {:.2f} times as fast)", info.gain) : "mapped";
}

nlohmann::ordered_json weight_place_json(const runtime::WeightPlaceInfo& info) {
  return {{"place", info.is_memory ? "memory" : "mapped"},
          {"read_bytes", info.read_bytes},
          {"expert_bytes", info.expert_bytes},
          {"needed_bytes", info.needed_bytes},
          {"available_bytes", info.available_bytes},
          {"gain", info.gain},
          {"refusal", info.refusal}};
}

void tell_weight_place(const runtime::WeightPlaceInfo& info, bool is_asked, std::ostream& notes) {
  if (is_asked || info.is_memory || info.needed_bytes > info.available_bytes || !info.refusal.empty())
    notes << fmt::format("kalibri: weights {}\n", weight_place_text(info));
}

}  // namespace kalibri::cli
