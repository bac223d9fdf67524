#include "engine/cli/convert_command.hpp"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <ostream>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/convert.hpp"
#include "engine/cli/interrupt.hpp"
#include "engine/cli/peak_memory.hpp"
#include "engine/cli/progress_line.hpp"
#include "engine/cli/thread_count.hpp"

namespace kalibri::cli {

namespace {

using checkpoint::ConvertOptions;
using checkpoint::ConvertPlan;
using checkpoint::WeightClass;
using Clock = std::chrono::steady_clock;

ConvertOptions convert_options(const ConvertCommandOptions& o) {
  const bool names_bits = o.bits || o.attn_bits || o.expert_bits || o.embed_bits || o.head_bits;
  ConvertOptions options = names_bits ? ConvertOptions{} : ConvertOptions::mixed();
  if (names_bits) {
    options.bits = o.bits.value_or(options.bits);
    options.dense_bits = o.attn_bits;
    options.expert_bits = o.expert_bits;
    options.embed_bits = o.embed_bits;
    options.head_bits = o.head_bits;
  }
  options.group_size = o.group_size;
  options.quantises = !o.no_quant;
  options.rule = o.rule == "gpu" ? kernels::AffineRule::gpu : kernels::AffineRule::cpu;
  options.n_layers = o.layers;
  if (o.max_shard_bytes) options.max_shard_bytes = *o.max_shard_bytes;
  return options;
}

struct Interrupted {};

std::string bits_text(const ConvertOptions& options, WeightClass weights) {
  const std::int64_t bits = options.bits_of(weights);
  return bits == 0 ? "bf16" : fmt::format("{}-bit", bits);
}

void print_plan(const ConvertOptions& options, const ConvertPlan& plan, std::ostream& out) {
  fmt::print(out, "experts {}, attention and other matrices {}, embedding {}, head {}; groups of {}, {} rule\n",
             bits_text(options, WeightClass::experts), bits_text(options, WeightClass::dense),
             bits_text(options, WeightClass::embed), bits_text(options, WeightClass::head), options.group_size,
             options.rule == kernels::AffineRule::gpu ? "GPU" : "CPU");
  fmt::print(out, "{} tensors, {} parameters, {:.2f} GB read, {:.2f} GB written: {:.3f} bits a parameter\n",
             plan.tensors.size(), plan.n_parameters, gigabytes(plan.n_source_bytes), gigabytes(plan.n_output_bytes),
             8 * static_cast<double>(plan.n_output_bytes) / static_cast<double>(plan.n_parameters));
}

void print_layout(const ConvertPlan& plan, std::ostream& out) {
  for (const checkpoint::OutputTensor& tensor : plan.tensors) {
    fmt::print(out, "{}  {}  {} {}\n", plan.shards[tensor.shard].name, tensor.name,
               checkpoint::dtype_name(tensor.dtype), checkpoint::shape_text(tensor.shape));
  }
}

nlohmann::json plan_json(const ConvertPlan& plan) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const checkpoint::OutputTensor& tensor : plan.tensors) {
    tensors[tensor.name] = {{"dtype", checkpoint::dtype_name(tensor.dtype)},
                            {"shape", tensor.shape},
                            {"file", plan.shards[tensor.shard].name}};
  }
  return {{"n_parameters", plan.n_parameters},
          {"source_bytes", plan.n_source_bytes},
          {"output_bytes", plan.n_output_bytes},
          {"n_shards", plan.shards.size()},
          {"tensors", tensors}};
}

}  // namespace

void add_convert_options(CLI::App& command, ConvertCommandOptions& o) {
  command.add_option("DIR", o.directory, "Checkpoint directory, FP8 or bf16")->required();
  command.add_option("OUT", o.out, "Folder to make; must not exist or be empty")->required();
  command.add_option("--bits", o.bits,
                     "Of every class without a flag of its own: 2, 3, 4, 5, 6 or 8. Without any of "
                     "these flags: 4 for the experts, 8 elsewhere");
  command.add_option("--attn-bits", o.attn_bits, "Attention, shared experts and what else is dense; 0 = bf16");
  command.add_option("--expert-bits", o.expert_bits, "Routed experts; 0 = bf16");
  command.add_option("--embed-bits", o.embed_bits, "Embedding; 0 = bf16");
  command.add_option("--lm-head-bits", o.head_bits, "Head; 0 = bf16");
  command.add_option("--group-size", o.group_size, "Columns that share a scale: 32, 64 or 128")->capture_default_str();
  CLI::Option* no_quant = command.add_flag("--no-quant", o.no_quant, "MLX layout in bf16");
  for (const char* flag : {"--bits", "--attn-bits", "--expert-bits", "--embed-bits", "--lm-head-bits"}) {
    no_quant->excludes(flag);
  }
  command.add_option("--rule", o.rule, "Rounding of mlx on a CPU, or of its GPU kernels")
      ->check(CLI::IsMember({"cpu", "gpu"}))
      ->capture_default_str();
  command.add_option("--layers", o.layers, "The first N layers only");
  command.add_option("--max-shard-bytes", o.max_shard_bytes, "Data of a shard (5 GiB)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  command.add_flag("--dry-run", o.dry_run, "Print what would be written, and write nothing");
  command.add_flag("--json", o.json, "Write the summary (with --dry-run the layout) as JSON");
  command.add_option("--threads", o.n_threads, "0 = one a core (never changes a bit)");
}

int convert_command(const ConvertCommandOptions& o, std::ostream& out, std::ostream& err) {
  const ConvertOptions options = convert_options(o);
  const int n_threads = thread_count(o.n_threads);
  const auto checkpoint = checkpoint::Checkpoint::open(o.directory);
  const ConvertPlan plan = checkpoint::plan_conversion(checkpoint, options);
  if (o.dry_run) {
    if (o.json) {
      out << plan_json(plan).dump(1) << '\n';
    } else {
      print_layout(plan, out);
      print_plan(options, plan, out);
    }
    return 0;
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on files is then an error of the write, like a full disk
  ThreadPool pool(n_threads);
  ProgressLine progress(o.progress);
  const auto started = Clock::now();
  bool started_again = false;
  try {
    const Interrupt interrupt;
    started_again = checkpoint::convert(checkpoint, plan, o.out, pool, [&](std::int64_t n_done) {
      if (interrupt.flag()) throw Interrupted{};
      progress.show(n_done, plan.n_source_bytes);
    });
  } catch (const Interrupted&) {
    progress.clear();
    fmt::print(err, "kalibri: interrupted; nothing is left in {}\n", o.out);
    return kInterrupted;
  }
  progress.clear();
  const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
  const std::int64_t peak_bytes = peak_rss_bytes();
  if (o.json) {
    out << nlohmann::json{{"out", o.out},
                          {"n_parameters", plan.n_parameters},
                          {"source_bytes", plan.n_source_bytes},
                          {"output_bytes", plan.n_output_bytes},
                          {"n_shards", plan.shards.size()},
                          {"started_again", started_again},
                          {"seconds", seconds},
                          {"peak_rss_bytes", peak_bytes}}
               .dump(1)
        << '\n';
    return 0;
  }
  if (started_again) fmt::print(out, "{}: held a conversion that was interrupted; started again\n", o.out);
  print_plan(options, plan, out);
  fmt::print(out, "{}: {} shard{}, {:.1f} s, {:.0f} MB/s read, peak memory {:.2f} GiB\n", o.out, plan.shards.size(),
             plan.shards.size() == 1 ? "" : "s", seconds, static_cast<double>(plan.n_source_bytes) / seconds * 1e-6,
             static_cast<double>(peak_bytes) / (1 << 30));
  return 0;
}

}  // namespace kalibri::cli
