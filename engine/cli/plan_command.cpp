#include "engine/cli/plan_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "engine/base/error.hpp"
#include "engine/cli/byte_size.hpp"
#include "engine/cli/ceilings.hpp"
#include "engine/cli/expert_cache_flags.hpp"
#include "engine/cli/plan.hpp"
#include "engine/cli/precision_help.hpp"
#include "engine/cli/thread_count.hpp"

namespace kalibri::cli {

namespace {

using model::Footprint;
using nlohmann::ordered_json;

constexpr double kGiga = 1e9;

const char* name_of(Bottleneck bottleneck) {
  switch (bottleneck) {
    case Bottleneck::disk:
      return "disk";
    case Bottleneck::memory:
      return "memory";
    case Bottleneck::arithmetic:
      break;
  }
  return "arithmetic";
}

double in_gb(std::int64_t n_bytes) { return static_cast<double>(n_bytes) / kGiga; }

/// --expert-cache as slots of a layer.
std::optional<std::int64_t> wanted_slots(const PlanOptions& options, const Footprint& f) {
  const std::string& text = options.expert_cache;
  if (text.empty()) return {};
  if (f.makes_experts) {
    throw Error(ErrorCode::usage, fmt::format("--expert-cache: a cache holds experts as they are stored, but precision "
                                              "{} makes another form of them",
                                              options.precision));
  }
  const runtime::ExpertCacheOptions cache = expert_cache({.size = text});
  if (cache.n_slots > 0) return cache.n_slots;
  const std::int64_t row_bytes = f.n_layers * f.slot_bytes;
  if (cache.n_bytes < row_bytes) {
    throw Error(ErrorCode::usage, fmt::format("--expert-cache: '{}', expected at least {}, room for one expert in each "
                                              "of {} layers",
                                              text, bytes_text(row_bytes), f.n_layers));
  }
  return cache.n_bytes / row_bytes;
}

/// One line of what more memory buys.
struct Offer {
  std::int64_t ram_bytes = 0;
  Decode decode;
  Prefill prefill;
};

struct Outcome {
  PlanOptions options;
  Footprint footprint;
  Plan plan;
  Ceilings ceilings;
  std::vector<Offer> offers;  // the first is the plan
};

Offer offer(const Outcome& o, std::int64_t ram_bytes, std::int64_t n_slots) {
  return {ram_bytes, predict_decode(o.footprint, o.ceilings, n_slots),
          predict_prefill(o.footprint, o.ceilings, n_slots, o.options.chunk)};
}

ordered_json to_json(const Offer& o) {
  return {{"ram_bytes", o.ram_bytes},
          {"slots", o.decode.n_slots},
          {"hit_rate", o.decode.hit_rate},
          {"decode",
           {{"tokens_per_second", o.decode.best_rate()},
            {"tokens_per_second_without_overlap", o.decode.worst_rate()},
            {"disk_s", o.decode.disk_s},
            {"memory_s", o.decode.memory_s},
            {"arithmetic_s", o.decode.arithmetic_s},
            {"bottleneck", name_of(o.decode.bottleneck)}}},
          {"prefill",
           {{"tokens_per_second", o.prefill.best_rate()},
            {"disk_s", o.prefill.disk_s},
            {"memory_s", o.prefill.memory_s},
            {"arithmetic_s", o.prefill.arithmetic_s},
            {"bottleneck", name_of(o.prefill.bottleneck)}}}};
}

ordered_json to_json(const Outcome& o) {
  const Footprint& f = o.footprint;
  ordered_json json = {
      {"directory", o.options.directory},
      {"model_type", f.model_type},
      {"layers", f.n_layers},
      {"experts", f.n_experts},
      {"top_k", f.top_k},
      {"precision", o.options.precision},
      {"context", f.context},
      {"chunk", o.options.chunk},
      {"threads", o.options.n_threads},
      {"weights",
       {{"mapped_bytes", f.mapped_bytes},
        {"made_bytes", f.made_bytes},
        {"embedding_bytes", f.embedding_bytes},
        {"vector_bytes", f.vector_bytes},
        {"expert_scale_bytes", f.scale_bytes},
        {"index_bytes", f.index_bytes},
        {"resident_bytes", f.resident_bytes()},
        {"all_expert_bytes", f.all_expert_bytes},
        {"ngram_table_bytes", f.table_bytes}}},
      {"session",
       {{"fixed_state_bytes", f.fixed_state_bytes()},
        {"bytes_per_context_token", f.token_bytes},
        {"state_bytes", f.state_bytes},
        {"snapshot_bytes", o.plan.snapshot_bytes},
        {"workspace_bytes", f.workspace_bytes}}},
      {"token",
       {{"always_bytes", f.always_bytes()}, {"routed_bytes", f.routed_bytes()}, {"state_bytes", f.touched_bytes}}},
      {"ram_bytes", o.plan.ram_bytes},
      {"program_bytes", o.plan.program_bytes},
      {"needed_bytes", o.plan.fixed_bytes},
      {"missing_bytes", o.plan.missing_bytes},
      {"fits", o.plan.missing_bytes == 0},
      {"expert_cache",
       {{"slots", o.plan.n_slots},
        {"slot_bytes", f.slot_bytes},
        {"bytes_per_slot_in_each_layer", o.plan.slot_row_bytes},
        {"bytes", o.plan.cache_bytes},
        {"is_possible", !f.makes_experts}}},
      {"ceilings",
       {{"measured", o.ceilings.is_measured},
        {"memory_bytes_per_second", o.ceilings.memory_bytes},
        {"disk_bytes_per_second", o.ceilings.disk_bytes},
        {"operations_per_second", o.ceilings.operations}}},
      {"offers", ordered_json::array()},
  };
  for (const Offer& one : o.offers) json["offers"].push_back(to_json(one));
  return json;
}

std::string memory_text(const Outcome& o) {
  const Footprint& f = o.footprint;
  std::string text = "memory\n";
  const auto line = [&](const std::string& what, std::int64_t n_bytes, const std::string& remark = "") {
    if (n_bytes == 0) return;
    text += fmt::format("  {:<44}{:>12}{}{}\n", what, bytes_text(n_bytes), remark.empty() ? "" : "   ", remark);
  };
  line("weights of every token, as stored", f.mapped_bytes);
  line("weights of every token, in another form", f.made_bytes, "the files' own are let go");
  line("embedding", f.embedding_bytes);
  line("norms and other vectors", f.vector_bytes);
  line("scales of the experts", f.scale_bytes);
  line("names and places of the tensors", f.index_bytes);
  line("state that is always there", f.fixed_state_bytes(), "windows, DeltaNet's memory");
  line(fmt::format("state of {} tokens of context", f.context), f.token_bytes * f.context,
       bytes_text(f.token_bytes) + " a token");
  line("copies of the state, for the next prompt", o.plan.snapshot_bytes);
  line(fmt::format("workspace of {} tokens at a time", o.options.chunk), f.workspace_bytes);
  line("the program", o.plan.program_bytes);
  line("= needed beside experts", o.plan.fixed_bytes);
  if (f.makes_experts) {
    line("experts in another form", o.plan.cache_bytes, "made anew when they are wanted again");
  } else {
    line(fmt::format("expert cache, {} of {} a layer", o.plan.n_slots, f.n_experts), o.plan.cache_bytes,
         fmt::format("{} a slot, {} for one more in each of {} layers", bytes_text(f.slot_bytes),
                     bytes_text(o.plan.slot_row_bytes), f.n_layers));
  }
  line("= in all", o.plan.fixed_bytes + o.plan.cache_bytes, "of " + bytes_text(o.plan.ram_bytes));
  if (f.table_bytes > 0) {
    text += fmt::format("  n-gram table of {:.1f} GB: some rows a token, read from its files; takes no memory\n",
                        in_gb(f.table_bytes));
  }
  return text;
}

std::string offers_text(const Outcome& o) {
  std::string text = fmt::format("{:<14}{:>14}{:>10}{:>20}{:>12}{:>16}{:>12}\n", "memory", "experts kept", "hits",
                                 "answer tok/s", "bound by", "prompt tok/s", "bound by");
  for (const Offer& one : o.offers) {
    const double best = one.decode.best_rate();
    const double worst = one.decode.worst_rate();
    const std::string rates =
        best - worst < 0.01 ? fmt::format("{:.2f}", best) : fmt::format("{:.2f} to {:.2f}", worst, best);
    text +=
        fmt::format("{:<14}{:>14}{:>9.1f}%{:>20}{:>12}{:>16.2f}{:>12}\n", bytes_text(one.ram_bytes),
                    fmt::format("{} of {}", one.decode.n_slots, o.footprint.n_experts), 100 * one.decode.hit_rate,
                    rates, name_of(one.decode.bottleneck), one.prefill.best_rate(), name_of(one.prefill.bottleneck));
  }
  return text;
}

std::string to_text(const Outcome& o) {
  const Footprint& f = o.footprint;
  std::string text = fmt::format(
      "{}\n{}, {} layers, {} experts a layer of which a token takes {}; precision {}, {} threads\n\n",
      o.options.directory, f.model_type, f.n_layers, f.n_experts, f.top_k, o.options.precision, o.options.n_threads);
  text += memory_text(o);
  if (o.plan.missing_bytes > 0) {
    return text + fmt::format(
                      "\nDoes not fit: {} more are needed. A smaller --context or --chunk, fewer experts in "
                      "the cache or a checkpoint of fewer bits take less.\n",
                      bytes_text(o.plan.missing_bytes));
  }
  text += fmt::format(
      "\na token reads {:.2f} GB of weights that all pass, {:.2f} GB of routed experts ({:.1f} GB are all of them), "
      "{:.2f} GB of state\n",
      in_gb(f.always_bytes()), in_gb(f.routed_bytes()), in_gb(f.all_expert_bytes), in_gb(f.touched_bytes));
  text += fmt::format("ceilings, {}: memory {:.1f} GB/s, disk {:.2f} GB/s, arithmetic {:.0f} GFLOP/s\n\n",
                      o.ceilings.is_measured
                          ? "measured just now (a disk may give more for some seconds than it sustains)"
                          : "assumed (two cores of 2021 and a virtual disk; --measure takes this machine's)",
                      o.ceilings.memory_bytes / kGiga, o.ceilings.disk_bytes / kGiga, o.ceilings.operations / kGiga);
  text += offers_text(o);
  text +=
      "Rates are what the ceilings allow, at full context, when any expert is as likely as any other: texts repeat "
      "experts,\nand a cache then hits more often. From a to b: experts are never or always read while others are "
      "computed.\n";
  if (!f.makes_experts) text += fmt::format("\nTake: --expert-cache {}\n", o.plan.n_slots);
  if (!f.makes_experts && o.plan.n_slots < f.top_k) {
    text += fmt::format("A token needs {} experts in each layer: so small a cache keeps few from token to token.\n",
                        f.top_k);
  }
  return text;
}

}  // namespace

void add_plan_options(CLI::App& command, PlanOptions& options) {
  command.add_option("DIR", options.directory, "Checkpoint directory")->required();
  command.add_option("--ram", options.ram, "Memory to fit into: 24G, 24GiB, 24GB, 512M, or bytes")->required();
  command.add_option("--context", options.context, "Tokens of the longest conversation (default: 8192, or all it has)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command.add_option("--precision", options.precision, kPrecisionHelp)->capture_default_str();
  command.add_option("--expert-cache", options.expert_cache,
                     "Experts kept in each layer (64), or memory for them (12G), instead of as many as fit");
  command.add_option("--chunk", options.chunk, "Tokens that go through a layer at a time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--threads", options.n_threads, "0 = one a core");
  command.add_flag("--measure", options.measures, "Measure memory, disk and arithmetic now, instead of assuming them");
  command.add_flag("--json", options.json, "Write JSON");
}

int plan_command(const PlanOptions& options, std::ostream& out) {
  Outcome o{options, {}, {}, {}, {}};
  o.options.n_threads = thread_count(options.n_threads);
  const std::optional<std::int64_t> ram_bytes = parse_bytes(options.ram);
  if (!ram_bytes) {
    throw Error(ErrorCode::usage,
                fmt::format("--ram: '{}', expected an amount of memory such as 24G, 512M, 24GiB or a number of bytes",
                            options.ram));
  }
  const auto precision = runtime::Precision::parse(options.precision);
  o.options.precision = precision.text();
  const auto checkpoint = checkpoint::Checkpoint::open(options.directory);
  o.footprint = model::footprint(
      checkpoint,
      {.precision = precision, .context = options.context, .chunk = options.chunk, .n_threads = o.options.n_threads});
  o.plan = make_plan(o.footprint, *ram_bytes, wanted_slots(options, o.footprint));
  if (options.measures) o.ceilings = measure_ceilings(checkpoint, o.options.n_threads);
  o.offers.push_back(offer(o, o.plan.ram_bytes, o.plan.n_slots));
  for (const std::int64_t ram : further_memory(o.footprint, o.plan)) {
    o.offers.push_back(offer(o, ram, make_plan(o.footprint, ram, {}).n_slots));
  }
  out << (options.json ? to_json(o).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n' : to_text(o));
  return o.plan.missing_bytes > 0 ? 1 : 0;
}

}  // namespace kalibri::cli
