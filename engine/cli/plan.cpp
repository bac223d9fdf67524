#include "engine/cli/plan.hpp"

#include <algorithm>
#include <cmath>

#include "engine/runtime/resident_experts.hpp"

namespace kalibri::cli {

namespace {

using model::Footprint;

// An allowance for a process that has loaded nothing yet, and the stacks of its threads.
constexpr std::int64_t kProgramBytes = std::int64_t{24} << 20;

/// Copies of the state that a generator keeps: engine/model/generator.hpp.
constexpr std::int64_t kSnapshots = 2;

double ratio(std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

Bottleneck slowest(double disk_s, double memory_s, double arithmetic_s) {
  if (disk_s >= memory_s && disk_s >= arithmetic_s) return Bottleneck::disk;
  return memory_s >= arithmetic_s ? Bottleneck::memory : Bottleneck::arithmetic;
}

}  // namespace

double Decode::best_rate() const { return 1 / std::max({disk_s, memory_s, arithmetic_s}); }
double Decode::worst_rate() const { return 1 / (disk_s + std::max(memory_s, arithmetic_s)); }
double Prefill::best_rate() const { return 1 / std::max({disk_s, memory_s, arithmetic_s}); }

Plan make_plan(const Footprint& f, std::int64_t ram_bytes, std::optional<std::int64_t> wanted_slots) {
  Plan plan;
  plan.ram_bytes = ram_bytes;
  plan.program_bytes = kProgramBytes;
  plan.snapshot_bytes = kSnapshots * f.state_bytes;
  plan.slot_row_bytes = f.n_layers * f.slot_bytes;
  plan.fixed_bytes = f.resident_bytes() + f.state_bytes + plan.snapshot_bytes + f.workspace_bytes + plan.program_bytes;
  const std::int64_t room = ram_bytes - plan.fixed_bytes;
  if (f.makes_experts) {
    plan.cache_bytes = std::min(runtime::ResidentExperts::kMaxExpandedBytes, f.n_layers * f.n_experts * f.expert_bytes);
    plan.n_slots = plan.cache_bytes / (f.n_layers * f.expert_bytes);
  } else {
    plan.n_slots = wanted_slots.value_or(std::max<std::int64_t>(room / plan.slot_row_bytes, 1));
    plan.n_slots = std::min(plan.n_slots, f.n_experts);
    plan.cache_bytes = plan.n_slots * plan.slot_row_bytes;
  }
  plan.missing_bytes = std::max<std::int64_t>(plan.cache_bytes - room, 0);
  return plan;
}

Decode predict_decode(const Footprint& f, const Ceilings& ceilings, std::int64_t n_slots) {
  Decode decode;
  decode.n_slots = std::min(n_slots, f.n_experts);
  decode.hit_rate = ratio(decode.n_slots, f.n_experts);
  const std::int64_t n_experts = f.n_layers * f.top_k;
  const double n_misses = static_cast<double>(n_experts) * (1 - decode.hit_rate);
  decode.disk_s = n_misses * static_cast<double>(f.stored_expert_bytes) / ceilings.disk_bytes;
  decode.memory_s = static_cast<double>(f.always_bytes() + f.routed_bytes() + f.touched_bytes) / ceilings.memory_bytes;
  const std::int64_t n_weights = f.n_always_weights + f.n_head_weights + n_experts * f.n_expert_weights;
  decode.arithmetic_s = 2 * static_cast<double>(n_weights) / ceilings.operations;
  decode.bottleneck = slowest(decode.disk_s, decode.memory_s, decode.arithmetic_s);
  return decode;
}

Prefill predict_prefill(const Footprint& f, const Ceilings& ceilings, std::int64_t n_slots, std::int64_t chunk) {
  const double hit_rate = ratio(std::min(n_slots, f.n_experts), f.n_experts);
  const auto n = static_cast<double>(std::min(chunk, f.context));
  const double n_distinct = static_cast<double>(f.n_experts) * (1 - std::pow(1 - ratio(f.top_k, f.n_experts), n));
  const double n_experts = static_cast<double>(f.n_layers) * n_distinct;
  Prefill prefill;
  prefill.disk_s = n_experts * (1 - hit_rate) * static_cast<double>(f.stored_expert_bytes) / ceilings.disk_bytes / n;
  prefill.memory_s =
      (static_cast<double>(f.always_bytes() - f.head_bytes) + n_experts * static_cast<double>(f.expert_bytes)) /
      ceilings.memory_bytes / n;
  const std::int64_t n_weights = f.n_always_weights + f.n_layers * f.top_k * f.n_expert_weights;
  prefill.arithmetic_s = 2 * static_cast<double>(n_weights) / ceilings.operations;
  prefill.bottleneck = slowest(prefill.disk_s, prefill.memory_s, prefill.arithmetic_s);
  return prefill;
}

std::vector<std::int64_t> further_memory(const Footprint& f, const Plan& plan) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  if (f.makes_experts) return {};
  const std::int64_t everything = plan.fixed_bytes + f.n_experts * plan.slot_row_bytes;
  std::vector<std::int64_t> memory;
  for (std::int64_t more = kGiB; plan.ram_bytes + more < everything; more *= 2) memory.push_back(plan.ram_bytes + more);
  if (everything > plan.ram_bytes) memory.push_back(everything);
  return memory;
}

}  // namespace kalibri::cli
