#include "reports/streaming_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "reports/bench_rows.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr Goal kDecoding = {.must = .85, .aim = .95};
/// Of the bytes: a mapped file's pages and the counter's grain are much less than the rest.
constexpr double kProof = .99;

/// One kind of stretch in all requests of a run.
struct Stretches {
  std::int64_t n_tokens = 0;
  double bytes = 0;       // of experts
  double disk_bytes = 0;  // of anything, by the kernel's count
  double seconds = 0;
  double wait_s = 0;
  std::int64_t n_hits = 0, n_wanted = 0;
};

Stretches add_up(const json& result, const char* name) {
  Stretches sum;
  for (const json& request : result.at("requests")) {
    const json& stretch = request.at(name);
    if (stretch.at("tokens") == 0) continue;  // a prompt that is held
    const json& experts = stretch.at("experts");
    sum.n_tokens += stretch.at("tokens").get<std::int64_t>();
    sum.bytes += experts.at("bytes_read").get<double>();
    sum.disk_bytes += stretch.value("disk_bytes", 0.0);
    sum.seconds += stretch.at("seconds").get<double>();
    sum.wait_s += experts.at("wait_s").get<double>();
    sum.n_hits += experts.at("hits").get<std::int64_t>();
    sum.n_wanted += experts.at("hits").get<std::int64_t>() + experts.at("misses").get<std::int64_t>();
  }
  return sum;
}

ordered_json row_of(const char* stretch, const std::optional<Goal>& goal, const std::vector<json>& disk,
                    const std::vector<json>& streamed) {
  std::vector<double> rates, disk_rates, ratios, waited, hit_rates, from_disk, others;
  std::int64_t n_tokens = 0;
  for (std::size_t i = 0; i < streamed.size(); ++i) {
    const Stretches sum = add_up(streamed[i].at("result"), stretch);
    const json& raw = disk[i].at("result");
    n_tokens = sum.n_tokens;
    rates.push_back(positive(sum.bytes, "experts' bytes") / positive(sum.seconds, "their time") / 1e9);
    disk_rates.push_back(positive(raw.at("bytes"), "the disk's bytes") / positive(raw.at("seconds"), "its time") / 1e9);
    ratios.push_back(rates.back() / disk_rates.back());
    waited.push_back(sum.wait_s / sum.seconds);
    hit_rates.push_back(static_cast<double>(sum.n_hits) / static_cast<double>(sum.n_wanted));
    from_disk.push_back(std::min(1.0, sum.disk_bytes / sum.bytes));
    others.push_back(std::max(streamed[i].at("others").get<double>(), disk[i].at("others").get<double>()));
  }
  const json& first = streamed.front().at("result");
  const json& cache = first.at("expert_cache");
  ordered_json row = {{"model", streamed.front().at("name")},
                      {"layers", first.at("layers")},
                      {"threads", first.at("threads")},
                      {"slots", cache.at("slots")},
                      {"experts", cache.at("experts")},
                      {"reads", cache.at("reads")},
                      {"by", cache.at("by")},
                      {"stretch", stretch},
                      {"tokens", n_tokens},
                      {"gb_per_second", median(rates)},
                      {"disk_gb_per_second", median(disk_rates)},
                      {"ratio", median(ratios)},
                      {"waited", median(waited)},
                      {"hit_rate", median(hit_rates)},
                      {"from_disk", *std::ranges::min_element(from_disk)},
                      {"ratios", ratios}};
  add_goal(row, goal, median(ratios), median(others));
  if (goal && row.at("from_disk").get<double>() < kProof) row["reached"] = "unproven";
  return row;
}

}  // namespace

ordered_json streaming_rows(const std::vector<json>& disk, const std::vector<json>& streamed) {
  if (disk.size() != streamed.size()) {
    throw std::runtime_error(fmt::format("experts from disk: {} runs of kalibri bench, {} of the disk's reader",
                                         streamed.size(), disk.size()));
  }
  return {row_of("answer", kDecoding, disk, streamed), row_of("prompt", {}, disk, streamed)};
}

Table streaming_table(const json& report) {
  Table result = bench_table(
      "Experts from disk",
      "Bytes read for routed experts, by the whole time of decoding (answer: attention, head and all) and of the "
      "prompts, which may be bound by arithmetic; beside readers of the same file that do nothing else, past the page "
      "cache, in turn, after a minute of them (the faster of four dd's and four threads that read into large pages). "
      "Medians; the ratio as the median of each pair's. Waited: the share of the time in which computing stood still "
      "for reads. From disk: what the kernel counted of these bytes, at least; below 0.99 the ratio is unproven.",
      {{"model", false},
       {"layers", true},
       {"experts kept", false},
       {"reads", false},
       {"what", false},
       {"GB/s", true},
       {"disk GB/s", true},
       {"ratio", true},
       {"must", true},
       {"aim", true},
       {"reached", false},
       {"waited", true},
       {"hits", true},
       {"from disk", true},
       {"others' CPUs", true},
       {"ratios", false}});
  for (const json& row : report.at("streaming")) {
    add_row(result,
            {row.at("model"), row.at("layers").dump(),
             fmt::format("{} of {}", row.at("slots").dump(), row.at("experts").dump()),
             row.at("reads").get<std::string>() + ", " + row.at("by").get<std::string>(),
             row.at("stretch").get<std::string>() + " " + row.at("tokens").dump(), two_decimals(row, "gb_per_second"),
             two_decimals(row, "disk_gb_per_second"), two_decimals(row, "ratio"), two_decimals(row, "must"),
             two_decimals(row, "aim"), row.value("reached", "-"), two_decimals(row, "waited"),
             two_decimals(row, "hit_rate"), two_decimals(row, "from_disk"), two_decimals(row, "others"),
             listed(row.at("ratios").get<std::vector<double>>())});
  }
  return result;
}

}  // namespace kalibri::reports
