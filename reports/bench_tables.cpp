#include "reports/bench_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>

#include "reports/bench_rows.hpp"
#include "reports/streaming_table.hpp"
#include "reports/tables.hpp"

namespace kalibri::reports {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// A format of kernels_bench, as people call it.
struct KernelFormat {
  const char* name;
  const char* weights;
  const char* activations;
  std::map<int, Goal> goals;  // by number of tokens
};

const std::vector<KernelFormat> kFormats = {
    {"bf16", "bf16", "f32", {{1, {.80, .92}}, {8, {.33, .42}}, {32, {.50, .62}}, {128, {.60, .72}}, {512, {.60, .70}}}},
    {"e4m3", "FP8", "f32", {{1, {.78, .88}}, {8, {.38, .48}}, {32, {.50, .60}}, {128, {.55, .65}}, {512, {.55, .64}}}},
    {"affine8", "8-bit", "f32", {{1, {.68, .78}}}},
    {"affine4", "4-bit", "f32", {{1, {.42, .52}}}},
    {"affine8-int16", "8-bit", "int16", {{1, {.60, .80}}}},
    {"affine4-int16", "4-bit", "int16", {{1, {.60, .72}}}},
};

struct Comparison {
  const char* name;
  const char* title;
  const char* our_activations;
  const char* their_weights;
  const char* their_activations;
  std::optional<Goal> decode, prefill;
};

const std::vector<Comparison> kComparisons = {
    {"kolibri1-mixed", "Kolibri 1, experts 4-bit, rest 8-bit", "f32", "q4_0, q8_0", "int8", Goal{1.15, 1.4},
     Goal{0.85, 1.1}},
    {"kolibri1-mixed-int16", "Kolibri 1, experts 4-bit, rest 8-bit", "int16", "q4_0, q8_0", "int8", Goal{1.3, 1.6}, {}},
    {"qwen4_exp", "Qwen3.8-Flash-Next, experts FP8, rest bf16", "f32", "q8_0, bf16", "int8, bf16", Goal{1.3, 1.6},
     Goal{1.0, 1.2}},
};

template <typename Named>
const Named& by_name(const std::vector<Named>& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Named& named) { return named.name == name; });
  if (found == list.end()) throw std::runtime_error("'" + name + "' is neither a format nor a comparison");
  return *found;
}

/// One row for each format and number of tokens, in the order in which they were measured.
void add_kernels(ordered_json& rows, const json& run) {
  ordered_json added = ordered_json::array();
  for (const json& m : run.at("result")) {
    const KernelFormat& format = by_name(kFormats, m.at("format"));
    const auto n_tokens = m.at("tokens").get<int>();
    const auto is_same = [&](const ordered_json& row) {
      return row.at("format") == format.name && row.at("tokens") == n_tokens;
    };
    auto row = std::find_if(added.begin(), added.end(), is_same);
    if (row == added.end()) {
      added.push_back({{"isa", m.at("isa")},
                       {"format", format.name},
                       {"weights", format.weights},
                       {"activations", format.activations},
                       {"tokens", n_tokens},
                       {"of", n_tokens == 1 ? "read-sum" : "FMA peak"},
                       {"products", ordered_json::array()}});
      row = std::prev(added.end());
    }
    row->at("products")
        .push_back({{"rows", m.at("rows")},
                    {"cols", m.at("cols")},
                    {"rate", positive(m.at("rate"), "a kernel's rate")},
                    {"ceiling", positive(m.at("ceiling"), "a kernel's ceiling")},
                    {"share", positive(m.at("share"), "a kernel's share")}});
  }
  for (ordered_json& row : added) {
    std::vector<double> shares;
    for (const ordered_json& product : row.at("products")) shares.push_back(product.at("share").get<double>());
    row["share"] = median(shares);
    const auto& goals = by_name(kFormats, row.at("format")).goals;
    const auto goal = goals.find(row.at("tokens").get<int>());
    add_goal(row, goal == goals.end() ? std::nullopt : std::optional(goal->second), median(shares), run.at("others"));
    rows.push_back(std::move(row));
  }
}

void add_campaign(ordered_json& rows, const std::string& name, const json& run) {
  const json& result = run.at("result");
  for (const json& request : result.at("requests")) {
    const json& prompt = request.at("prompt");
    const json& answer = request.at("answer");
    const double weight_rate = answer.at("weight_bytes").get<double>() / positive(answer.at("seconds"), name);
    rows.push_back({{"model", name},
                    {"layers", result.at("layers")},
                    {"precision", result.at("precision")},
                    {"isa", result.at("isa")},
                    {"threads", result.at("threads")},
                    {"request", request.at("name")},
                    {"prompt_tokens", prompt.at("tokens").get<int>() + request.at("reused").get<int>()},
                    {"reused", request.at("reused")},
                    {"first_token_s", prompt.at("seconds")},
                    {"prompt_rate", prompt.at("tokens_per_second")},
                    {"answer_rate", positive(answer.at("tokens_per_second"), name)},
                    {"share_of_read_sum", weight_rate / positive(request.at("read_bytes_per_second"), name)},
                    {"others", run.at("others")},
                    {"peak_rss_bytes", result.at("peak_rss_bytes")}});
  }
}

/// A side's rates in one run, by "prefill" and "decode".
using Rates = std::map<std::string, double>;

Rates our_rates(const Comparison& comparison, const json& result) {
  const auto precision = result.at("precision").get<std::string>();
  const bool is_int16 = precision.find("activations=int16") != precision.npos;
  if (is_int16 != (std::string(comparison.our_activations) == "int16")) {
    throw std::runtime_error(fmt::format("{}: ran as '{}', not with {} activations", comparison.name, precision,
                                         comparison.our_activations));
  }
  std::vector<double> prefill, decode;
  for (const json& request : result.at("requests")) {
    prefill.push_back(positive(request.at("prompt").at("tokens_per_second"), comparison.name));
    decode.push_back(positive(request.at("answer").at("tokens_per_second"), comparison.name));
  }
  return {{"prefill", median(prefill)}, {"decode", median(decode)}};
}

/// Of llama-bench, if its tests are those of our run.
Rates their_rates(const Comparison& comparison, const json& result, const json& ours) {
  const json& request = ours.at("requests").at(0);
  Rates rates;
  for (const json& test : result) {
    if (test.at("n_threads") != ours.at("threads")) {
      throw std::runtime_error(fmt::format("{}: {} threads of llama-bench, {} of kalibri bench", comparison.name,
                                           test.at("n_threads").dump(), ours.at("threads").dump()));
    }
    const bool is_prefill = test.at("n_gen") == 0;
    const json& n_theirs = test.at(is_prefill ? "n_prompt" : "n_gen");
    const json& n_ours = request.at(is_prefill ? "prompt" : "answer").at("tokens");
    if (n_theirs != n_ours || (!is_prefill && test.at("n_prompt") != 0)) {
      throw std::runtime_error(fmt::format("{}: llama-bench ran {} tokens, kalibri bench {}", comparison.name,
                                           n_theirs.dump(), n_ours.dump()));
    }
    rates[is_prefill ? "prefill" : "decode"] = positive(test.at("avg_ts"), comparison.name);
  }
  return rates;
}

void add_comparison(ordered_json& rows, const std::string& name, const std::vector<json>& ours,
                    const std::vector<json>& theirs) {
  const Comparison& comparison = by_name(kComparisons, name);
  if (ours.size() != theirs.size()) {
    throw std::runtime_error(
        fmt::format("{}: {} runs of kalibri bench, {} of llama-bench", name, ours.size(), theirs.size()));
  }
  for (const char* stretch : {"decode", "prefill"}) {
    std::vector<double> our_values, their_values, ratios, others;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      our_values.push_back(our_rates(comparison, ours[i].at("result")).at(stretch));
      const Rates rates = their_rates(comparison, theirs[i].at("result"), ours[i].at("result"));
      if (!rates.contains(stretch)) throw std::runtime_error(fmt::format("{}: llama-bench ran no {}", name, stretch));
      their_values.push_back(rates.at(stretch));
      ratios.push_back(our_values.back() / their_values.back());
      others.push_back(std::max(ours[i].at("others").get<double>(), theirs[i].at("others").get<double>()));
    }
    const json& first = ours.front().at("result");
    const json& request = first.at("requests").at(0);
    ordered_json row = {{"name", name},
                        {"model", comparison.title},
                        {"layers", first.at("layers")},
                        {"isa", first.at("isa")},
                        {"threads", first.at("threads")},
                        {"stretch", stretch},
                        {"tokens", request.at(std::string(stretch) == "decode" ? "answer" : "prompt").at("tokens")},
                        {"our_activations", comparison.our_activations},
                        {"their_activations", comparison.their_activations},
                        {"their_weights", comparison.their_weights},
                        {"ours", median(our_values)},
                        {"theirs", median(their_values)},
                        {"ratio", median(ratios)},
                        {"our_rates", our_values},
                        {"their_rates", their_values},
                        {"ratios", ratios}};
    add_goal(row, std::string(stretch) == "decode" ? comparison.decode : comparison.prefill, median(ratios),
             median(others));
    rows.push_back(std::move(row));
  }
}

Table kernels_table(const json& report, bool is_one_token) {
  Table result =
      is_one_token
          ? bench_table(
                "Products with one token",
                "Share of a read-sum over the same bytes (4 streams a thread, huge pages), alternated with it; thread "
                "CPU time; the median over the matrices' rows, which are listed one by one.",
                {})
          : bench_table("Products with many tokens", "Share of the FMA peak measured in the same process.", {});
  result.columns = {{"ISA", false},         {"weights", false}, {"activations", false}, {"tokens", true},
                    {"share", true},        {"must", true},     {"aim", true},          {"reached", false},
                    {"others' CPUs", true}, {"rows", false},    {"each", false}};
  for (const json& row : report.at("kernels")) {
    if ((row.at("tokens") == 1) != is_one_token) continue;
    std::string n_rows;
    std::vector<double> shares;
    for (const json& product : row.at("products")) {
      n_rows += (n_rows.empty() ? "" : " ") + product.at("rows").dump();
      shares.push_back(product.at("share"));
    }
    add_row(result, {row.at("isa"), row.at("weights"), row.at("activations"), row.at("tokens").dump(),
                     two_decimals(row, "share"), two_decimals(row, "must"), two_decimals(row, "aim"),
                     row.value("reached", "-"), two_decimals(row, "others"), n_rows, listed(shares)});
  }
  return result;
}

Table requests_table(const json& report) {
  Table result =
      bench_table("Requests", "Cold (the page cache dropped first), its repeat, four others; one session, greedy.",
                  {{"model", false},
                   {"layers", true},
                   {"precision", false},
                   {"request", false},
                   {"prompt", true},
                   {"reused", true},
                   {"first token s", true},
                   {"prompt tok/s", true},
                   {"answer tok/s", true},
                   {"of the read-sum", true},
                   {"others' CPUs", true},
                   {"peak GiB", true}});
  for (const json& row : report.at("requests")) {
    add_row(result,
            {row.at("model"), row.at("layers").dump(), row.at("precision"), row.at("request"),
             row.at("prompt_tokens").dump(), row.at("reused").dump(),
             fmt::format("{:.3f}", row.at("first_token_s").get<double>()), two_decimals(row, "prompt_rate"),
             two_decimals(row, "answer_rate"), two_decimals(row, "share_of_read_sum"), two_decimals(row, "others"),
             fmt::format("{:.2f}", row.at("peak_rss_bytes").get<double>() / (1 << 30))});
  }
  return result;
}

Table comparisons_table(const json& report) {
  Table result =
      bench_table("Beside llama.cpp",
                  "Equal shapes and, but for FP8 (8 bits beside 8.5 of q8_0), equal bits; A and B in turn; medians "
                  "of tokens a second, the ratio as the median of each pair's. llama.cpp decodes from an empty "
                  "context, kalibri behind the prompt.",
                  {{"model", false},
                   {"layers", true},
                   {"what", false},
                   {"kalibri's activations", false},
                   {"llama.cpp's weights", false},
                   {"llama.cpp's activations", false},
                   {"kalibri", true},
                   {"llama.cpp", true},
                   {"ratio", true},
                   {"must", true},
                   {"aim", true},
                   {"reached", false},
                   {"others' CPUs", true},
                   {"ratios", false}});
  for (const json& row : report.at("comparisons")) {
    add_row(
        result,
        {row.at("model"), row.at("layers").dump(), row.at("stretch").get<std::string>() + " " + row.at("tokens").dump(),
         row.at("our_activations"), row.at("their_weights"), row.at("their_activations"), two_decimals(row, "ours"),
         two_decimals(row, "theirs"), two_decimals(row, "ratio"), two_decimals(row, "must"), two_decimals(row, "aim"),
         row.value("reached", "-"), two_decimals(row, "others"), listed(row.at("ratios").get<std::vector<double>>())});
  }
  return result;
}

Table missing_table(const json& report) {
  Table result = bench_table("Not measured", "", {{"what", false}, {"why", false}});
  for (const json& row : report.at("missing")) add_row(result, {row.at("what"), row.at("why")});
  return result;
}

}  // namespace

ordered_json bench_report(const std::vector<json>& runs) {
  ordered_json report = {{"format", "kalibri-bench"},
                         {"version", 1},
                         {"machine", nullptr},
                         {"kernels", ordered_json::array()},
                         {"requests", ordered_json::array()},
                         {"comparisons", ordered_json::array()},
                         {"streaming", ordered_json::array()},
                         {"missing", ordered_json::array()}};
  std::vector<std::string> compared;  // in the order of their first run
  std::map<std::string, std::vector<json>> ours, theirs;
  std::vector<json> disk, streamed;
  for (const json& run : runs) {
    const auto kind = run.at("kind").get<std::string>();
    const auto name = run.at("name").get<std::string>();
    if (kind == "machine") {
      report["machine"] = name;
    } else if (kind == "kernels") {
      add_kernels(report["kernels"], run);
    } else if (kind == "campaign") {
      add_campaign(report["requests"], name, run);
    } else if (kind == "ours" || kind == "theirs") {
      if (!ours.contains(name) && !theirs.contains(name)) compared.push_back(name);
      (kind == "ours" ? ours : theirs)[name].push_back(run);
    } else if (kind == "disk" || kind == "streamed") {
      (kind == "disk" ? disk : streamed).push_back(run);
    } else if (kind == "missing") {
      report["missing"].push_back({{"what", name}, {"why", run.at("result")}});
    } else {
      throw std::runtime_error("'" + kind + "' is no kind of run");
    }
  }
  for (const std::string& name : compared) add_comparison(report["comparisons"], name, ours[name], theirs[name]);
  if (!disk.empty() || !streamed.empty()) report["streaming"] = streaming_rows(disk, streamed);
  return report;
}

std::string bench_markdown(const json& report) {
  std::string text =
      "# Speeds\n\nWhere others kept more than a tenth of a processor busy, a measurement is disturbed and reaches "
      "nothing.\n";
  if (report.at("machine").is_string()) {
    text += "\n" + markdown_escaped(report.at("machine").get<std::string>()) + "\n";
  }
  for (const Table& part : {kernels_table(report, true), kernels_table(report, false), requests_table(report),
                            comparisons_table(report), streaming_table(report), missing_table(report)}) {
    if (!part.rows.empty()) text += markdown_text(part);
  }
  return text;
}

}  // namespace kalibri::reports
