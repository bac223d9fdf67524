#include "engine/cli/check_dequant_command.hpp"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/dequant_check.hpp"
#include "engine/cli/progress_line.hpp"
#include "engine/cli/thread_count.hpp"

namespace kalibri::cli {

namespace {

using checkpoint::DequantReport;

constexpr std::size_t kMaxListed = 20;  // mismatches in the text; the JSON has them all

void print_text(const CheckDequantOptions& o, const std::string& file, const DequantReport& report, std::ostream& out) {
  fmt::print(out, "{}{}\n", o.fp8, file.empty() ? "" : ": shard " + std::to_string(*o.shard) + ", " + file);
  fmt::print(out, "{} FP8 tensors", report.n_fp8);
  if (!report.worst_tensor.empty()) {
    fmt::print(out, ": worst r = {:.4f}, at most {} expected: {}", report.worst, checkpoint::kLargestDequantRatio,
               report.worst_tensor);
  }
  fmt::print(out, "\n{} other tensors identical\n{} mismatches\n", report.n_identical, report.mismatches.size());
  for (std::size_t i = 0; i < std::min(report.mismatches.size(), kMaxListed); ++i) {
    fmt::print(out, "  {}: {}\n", report.mismatches[i].tensor, report.mismatches[i].text);
  }
  if (report.mismatches.size() > kMaxListed) {
    fmt::print(out, "  and {} more (--json lists all)\n", report.mismatches.size() - kMaxListed);
  }
}

nlohmann::ordered_json to_json(const CheckDequantOptions& o, const std::string& file, const DequantReport& report) {
  nlohmann::ordered_json json = {{"fp8", o.fp8}, {"bf16", o.bf16}};
  if (!file.empty()) json["shard"] = file;
  json["held"] = report.mismatches.empty();
  json["n_fp8"] = report.n_fp8;
  json["worst_r"] = report.worst;  // NaN becomes null
  json["worst_tensor"] = report.worst_tensor;
  json["allowed_r"] = checkpoint::kLargestDequantRatio;
  json["n_identical"] = report.n_identical;
  json["mismatches"] = nlohmann::ordered_json::array();
  for (const auto& [tensor, text] : report.mismatches)
    json["mismatches"].push_back({{"tensor", tensor}, {"text", text}});
  return json;
}

}  // namespace

void add_check_dequant_options(CLI::App& command, CheckDequantOptions& o) {
  command.add_option("FP8DIR", o.fp8, "Checkpoint directory in FP8")->required();
  command.add_option("BF16DIR", o.bf16, "The one in bf16 that it was made from")->required();
  command.add_option("--shard", o.shard,
                     "Only the tensors of FP8DIR's N-th shard, from 1; of others only what they need must be there");
  command.add_flag("--json", o.json, "Write JSON, with every mismatch");
  command.add_option("--threads", o.n_threads, "0 = one a core");
}

int check_dequant_command(const CheckDequantOptions& o, std::ostream& out) {
  ThreadPool pool(thread_count(o.n_threads));
  checkpoint::LazyShards fp8(o.fp8);
  checkpoint::LazyShards bf16(o.bf16);
  ProgressLine progress(o.progress);
  const DequantReport report = checkpoint::check_dequant(
      fp8, bf16, o.shard, pool, [&](std::int64_t n_done, std::int64_t n_all) { progress.show(n_done, n_all); });
  progress.clear();
  const std::string file = o.shard ? fp8.files()[static_cast<std::size_t>(*o.shard - 1)] : "";
  if (o.json) {
    out << to_json(o, file, report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  } else {
    print_text(o, file, report, out);
  }
  return report.mismatches.empty() ? 0 : 1;
}

}  // namespace kalibri::cli
