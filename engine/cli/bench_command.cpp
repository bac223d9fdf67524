#include "engine/cli/bench_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/cli/disk_reads.hpp"
#include "engine/cli/page_cache.hpp"
#include "engine/cli/peak_memory.hpp"
#include "engine/cli/precision_help.hpp"
#include "engine/cli/seeded_prompts.hpp"
#include "engine/cli/thread_count.hpp"
#include "engine/cli/weight_place_flag.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/model/generator.hpp"
#include "engine/runtime/read_rate.hpp"

namespace kalibri::cli {

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;
using runtime::PhaseClock;

constexpr double kGiga = 1e9;

/// Memory that is read to see how fast that goes: well beyond the caches.
constexpr std::size_t kRulerBytes = std::size_t{256} << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// One stretch of a request: its tokens, time, and where that went.
struct Stretch {
  std::int64_t n_tokens = 0;
  double seconds = 0;
  PhaseClock::Seconds phases = {};
  std::int64_t weight_bytes = 0;
  runtime::ExpertStatistics experts = {};
  double expert_wait_s = 0;                     // of phase experts: for reads from disk, a thread's mean
  std::optional<std::int64_t> disk_bytes = {};  // that the disks read for this process meanwhile

  [[nodiscard]] double rate() const { return seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0; }
  [[nodiscard]] double bytes_per_second() const { return static_cast<double>(weight_bytes) / seconds; }
  /// The phases by name; of the experts' time the waiting is another part than the arithmetic.
  [[nodiscard]] std::vector<std::pair<std::string, double>> parts() const {
    std::vector<std::pair<std::string, double>> parts;
    for (std::size_t i = 0; i < runtime::kPhases; ++i) {
      const bool waits = static_cast<runtime::Phase>(i) == runtime::Phase::experts;
      parts.emplace_back(runtime::kPhaseNames[i], phases[i] - (waits ? expert_wait_s : 0));
      if (waits) parts.emplace_back("expert_wait", expert_wait_s);
    }
    return parts;
  }
};

struct Request {
  std::string name;
  std::int64_t n_reused = 0;
  Stretch prompt;
  Stretch answer;
  double read_rate = 0;  // bytes a second, measured right after
};

class Bench {
 public:
  Bench(const BenchOptions& options, std::ostream& notes)
      : options_(options),
        checkpoint_(checkpoint::Checkpoint::open(options.directory)),
        pool_(thread_count(options.n_threads)),
        model_(checkpoint_, runtime::Precision::parse(options.precision), expert_cache(options.expert_cache),
               weight_place(options.weights, pool_.n_threads())),
        load_s_(seconds_since(start_)) {
    tell_expert_cache(model_, notes);
    const std::int64_t longest = model_.info().max_positions;
    if (options.n_prompt + options.n_answer > longest) {
      throw Error(ErrorCode::usage,
                  fmt::format("bench: {} tokens of prompt and {} of answer: the model has {} positions "
                              "(config.json max_position_embeddings)",
                              options.n_prompt, options.n_answer, longest));
    }
  }

  std::vector<Request> repeats() {
    const std::vector<std::int32_t> ids = seeded_ids(1, options_.n_prompt, model_.info().vocab_size);
    std::vector<Request> requests;
    for (std::int64_t i = 0; i <= options_.n_repeats; ++i) {
      tell(i == 0 ? "warming up" : fmt::format("run {} of {}", i, options_.n_repeats));
      model::Generator generator = start(model::Generator::PromptState::forgotten);
      Request request = run(generator, fmt::format("run {}", i), ids);
      if (i > 0) requests.push_back(std::move(request));
    }
    tell("");
    return requests;
  }

  std::vector<Request> campaign() {
    model::Generator generator = start(model::Generator::PromptState::kept);
    std::vector<Request> requests;
    const auto ask = [&](const std::string& name, std::uint64_t seed) {
      tell(name);
      requests.push_back(run(generator, name, seeded_ids(seed, options_.n_prompt, model_.info().vocab_size)));
    };
    ask("cold", 1);
    ask("repeat", 1);
    for (std::uint64_t k = 1; k <= 4; ++k) ask(fmt::format("prompt {}", k), 1 + k);
    tell("");
    return requests;
  }

  [[nodiscard]] const model::Model& model() const { return model_; }
  [[nodiscard]] int n_threads() const { return pool_.n_threads(); }
  [[nodiscard]] double load_s() const { return load_s_; }

 private:
  void tell(const std::string& text) const {
    if (options_.progress != nullptr) *options_.progress << "\r\033[K" << text << std::flush;
  }

  model::Generator start(model::Generator::PromptState state) {
    return {model_, pool_, {.max_tokens = options_.n_prompt + options_.n_answer, .chunk = options_.chunk}, state};
  }

  Request run(model::Generator& generator, const std::string& name, const std::vector<std::int32_t>& ids) {
    Request request{name, 0, {}, {}, 0};
    PhaseClock clock;
    generator.measure(&clock);
    model::GenerateOptions options;
    options.max_tokens = options_.n_answer;
    options.sampling.temperature = 0;
    auto end_stretch = [&, before = model_.expert_statistics(), disk_before = disk_read_bytes()](
                           Stretch& stretch, std::int64_t n_tokens) mutable {
      clock.enter(runtime::Phase::other);  // all that follows belongs to no stretch
      const runtime::ExpertStatistics now = model_.expert_statistics();
      const std::optional<std::int64_t> disk_now = disk_read_bytes();
      const PhaseClock::Seconds& phases = clock.seconds();
      stretch = {n_tokens,     std::accumulate(phases.begin(), phases.end(), 0.0), phases, clock.weight_bytes(),
                 now - before, (now - before).wait_s / pool_.n_threads()};
      if (disk_before && disk_now) stretch.disk_bytes = *disk_now - *disk_before;
      before = now;
      disk_before = disk_now;
      clock.reset();
    };
    bool is_first = true;
    clock.reset();
    model::GenerateHooks hooks;
    hooks.token = [&](std::int32_t, std::span<const float>) {
      if (std::exchange(is_first, false)) end_stretch(request.prompt, 0);
      return true;
    };
    const model::Generated generated = generator.run(ids, options, hooks);
    end_stretch(request.answer, static_cast<std::int64_t>(generated.ids.size()) - 1);
    generator.measure(nullptr);
    request.prompt.n_tokens = generated.n_prefilled;
    request.n_reused = generated.n_reused;
    request.read_rate = read_rate_.measure(pool_);
    return request;
  }

  const BenchOptions& options_;
  runtime::ReadRate read_rate_{kRulerBytes};  // first: all that follows counts as the model's memory and time
  Clock::time_point start_ = Clock::now();
  checkpoint::Checkpoint checkpoint_;
  ThreadPool pool_;
  model::Model model_;
  double load_s_;
};

ordered_json to_json(const Stretch& stretch, const Bench& bench) {
  ordered_json phases;
  for (const auto& [name, seconds] : stretch.parts()) phases[name] = seconds;
  ordered_json json = {{"tokens", stretch.n_tokens},
                       {"seconds", stretch.seconds},
                       {"tokens_per_second", stretch.rate()},
                       {"weight_bytes", stretch.weight_bytes},
                       {"phases_s", phases}};
  if (stretch.disk_bytes) json["disk_bytes"] = *stretch.disk_bytes;
  if (bench.model().expert_cache()) json["experts"] = expert_statistics_json(stretch.experts, bench.n_threads());
  return json;
}

ordered_json to_json(const Request& request, const Bench& bench) {
  return {{"name", request.name},
          {"reused", request.n_reused},
          {"prompt", to_json(request.prompt, bench)},
          {"answer", to_json(request.answer, bench)},
          {"read_bytes_per_second", request.read_rate}};
}

std::string share_text(const Stretch& stretch) {
  std::string text;
  for (const auto& [name, seconds] : stretch.parts()) {
    const double share = seconds / stretch.seconds;
    if (share >= 0.005) text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * share);
  }
  return text;
}

/// The median of a number over the requests.
template <typename Number>
double median_of(std::span<const Request> requests, Number number) {
  std::vector<double> values;
  for (const Request& request : requests) values.push_back(number(request));
  return median(values);
}

double answer_gb_a_token(const Request& request) {
  return static_cast<double>(request.answer.weight_bytes) / static_cast<double>(request.answer.n_tokens) / kGiga;
}

/// What both forms of a row begin with.
std::string row_head(const Bench& bench) {
  const model::ModelInfo& info = bench.model().info();
  const auto cache = bench.model().expert_cache();
  return fmt::format("| {} | {} | {} | {} | {} | {} |", info.model_type, info.n_layers,
                     bench.model().precision().text(),
                     cache ? fmt::format("{} of {}", cache->n_slots, cache->n_experts) : "all", kernels::kernels().isa,
                     bench.n_threads());
}

constexpr const char* kRowTitles = "| model | layers | precision | experts kept | isa | threads |";
constexpr const char* kRowRule = "|---|---|---|---|---|---|";

double in_gib(std::int64_t n_bytes) { return static_cast<double>(n_bytes) / (1 << 30); }

/// Of the program without the ruler, which lay beside it all the time.
std::int64_t peak_bytes() { return peak_rss_bytes() - static_cast<std::int64_t>(kRulerBytes); }

/// There is none where everything was held already.
std::string prompt_rate_text(const Stretch& prompt) {
  return prompt.n_tokens == 0 ? "-" : fmt::format("{:.2f}", prompt.rate());
}

std::string repeats_text(const std::vector<Request>& requests, const Bench& bench) {
  const double prompt_rate = median_of(requests, [](const Request& r) { return r.prompt.rate(); });
  const double answer_rate = median_of(requests, [](const Request& r) { return r.answer.rate(); });
  const double share = median_of(requests, [](const Request& r) { return r.answer.bytes_per_second() / r.read_rate; });
  const double weight_rate = median_of(requests, [](const Request& r) { return r.answer.bytes_per_second() / kGiga; });
  const Request& last = requests.back();
  const auto experts = [&](const Stretch& stretch) {
    return bench.model().expert_cache() ? expert_statistics_text(stretch.experts, bench.n_threads()) : "";
  };
  return fmt::format("prompt    {:>6} tokens  {:>9.2f} tok/s  ({}){}\n", last.prompt.n_tokens, prompt_rate,
                     share_text(last.prompt), experts(last.prompt)) +
         fmt::format("answer    {:>6} tokens  {:>9.2f} tok/s  ({}){}\n", last.answer.n_tokens, answer_rate,
                     share_text(last.answer), experts(last.answer)) +
         fmt::format("weights   {:.3f} GB a token of the answer: {:.1f} GB/s, {:.2f} of the read-sum of {:.1f} GB/s\n",
                     answer_gb_a_token(last), weight_rate, share,
                     median_of(requests, [](const Request& r) { return r.read_rate / kGiga; })) +
         fmt::format("memory    {:.2f} GiB at most, {:.2f} GiB for the read-sum aside; {:.2f} s to load\n\n",
                     in_gib(peak_bytes()), in_gib(kRulerBytes), bench.load_s()) +
         fmt::format(
             "{} prompt tok/s | answer tok/s | GB a token | GB/s | of read-sum | peak GiB "
             "|\n{}---|---|---|---|---|---|\n",
             kRowTitles, kRowRule) +
         fmt::format("{} {:.2f} | {:.2f} | {:.3f} | {:.1f} | {:.2f} | {:.2f} |\n", row_head(bench), prompt_rate,
                     answer_rate, answer_gb_a_token(last), weight_rate, share, in_gib(peak_bytes()));
}

/// A row a request, then one of the whole campaign.
std::string campaign_text(const std::vector<Request>& requests, const Bench& bench) {
  const bool has_cache = bench.model().expert_cache().has_value();
  std::string text = fmt::format(
      "| request | prompt tokens | reused | first token s | prompt tok/s | answer tok/s |{}\n"
      "|---|---|---|---|---|---|{}\n",
      has_cache ? " expert hits | GB read | read GB/s | wait s |" : "", has_cache ? "---|---|---|---|" : "");
  for (const Request& r : requests) {
    text += fmt::format("| {} | {} | {} | {:.3f} | {} | {:.2f} |", r.name, r.prompt.n_tokens + r.n_reused, r.n_reused,
                        r.prompt.seconds, prompt_rate_text(r.prompt), r.answer.rate());
    if (has_cache) {
      const ordered_json experts = expert_statistics_json(r.prompt.experts + r.answer.experts, bench.n_threads());
      text += fmt::format(" {:.1f} % | {:.3f} | {:.2f} | {:.3f} |", 100 * experts.at("hit_rate").get<double>(),
                          experts.at("bytes_read").get<double>() / kGiga,
                          experts.at("bytes_per_s").get<double>() / kGiga, experts.at("wait_s").get<double>());
    }
    text += '\n';
  }
  const std::span others = std::span(requests).subspan(2);
  return text +
         fmt::format(
             "\n{} load s | cold first token s | repeat first token s | other prompts: first token s | "
             "prompt tok/s | answer tok/s | peak GiB |\n{}---|---|---|---|---|---|---|\n",
             kRowTitles, kRowRule) +
         fmt::format("{} {:.2f} | {:.3f} | {:.3f} | {:.3f} | {:.2f} | {:.2f} | {:.2f} |\n", row_head(bench),
                     bench.load_s(), requests[0].prompt.seconds, requests[1].prompt.seconds,
                     median_of(others, [](const Request& r) { return r.prompt.seconds; }),
                     median_of(others, [](const Request& r) { return r.prompt.rate(); }),
                     median_of(others, [](const Request& r) { return r.answer.rate(); }), in_gib(peak_bytes()));
}

/// Puts the checkpoint's files out of the page cache, and says so when some of them stayed.
PageCacheDrop drop_checkpoint(const std::string& directory, std::ostream& notes) {
  std::vector<std::filesystem::path> files;
  {
    const auto checkpoint = checkpoint::Checkpoint::open(directory);
    for (const checkpoint::SafetensorsFile& shard : checkpoint.shards()) files.push_back(shard.path());
  }  // what is mapped stays in memory
  const PageCacheDrop dropped = drop_from_page_cache(files);
  if (dropped.bytes_left > 0) {
    notes << fmt::format(
        "kalibri: warning: {:.3f} of {:.3f} GB of the checkpoint stay in the page cache (mapped by "
        "another program, on a file system in memory, or another user's files): the first request is not quite cold\n",
        static_cast<double>(dropped.bytes_left) / kGiga, static_cast<double>(dropped.bytes) / kGiga);
  }
  return dropped;
}

}  // namespace

void add_bench_options(CLI::App& command, BenchOptions& options) {
  command.add_option("DIR", options.directory, "Checkpoint directory")->required();
  command.add_option("-p,--prompt-tokens", options.n_prompt, "Tokens of a prompt")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command.add_option("-n,--answer-tokens", options.n_answer, "Tokens of an answer")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command.add_option("--repeat", options.n_repeats, "Runs, of which the median is told")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--precision", options.precision, kPrecisionHelp)->capture_default_str();
  command.add_option("--chunk", options.chunk, "Tokens that go through a layer at a time (never changes a bit)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--threads", options.n_threads, "0 = one a core (never changes a bit)");
  add_weight_place(command, options.weights);
  add_expert_cache(command, options.expert_cache);
  command.add_flag("--campaign", options.campaign,
                   "A cold request, its repeat, and four other prompts, as a server would see them");
  command.add_flag("--json", options.json, "Write JSON");
}

int bench_command(const BenchOptions& options, std::ostream& out, std::ostream& notes) {
  std::optional<PageCacheDrop> dropped;
  if (options.campaign) dropped = drop_checkpoint(options.directory, notes);
  Bench bench(options, notes);
  const std::vector<Request> requests = options.campaign ? bench.campaign() : bench.repeats();
  const model::ModelInfo& info = bench.model().info();
  if (options.json) {
    ordered_json json = {{"model_type", info.model_type},
                         {"layers", info.n_layers},
                         {"precision", bench.model().precision().text()},
                         {"isa", kernels::kernels().isa},
                         {"threads", bench.n_threads()},
                         {"chunk", options.chunk},
                         {"weights", weight_place_json(bench.model().weight_place())},
                         {"campaign", options.campaign},
                         {"load_s", bench.load_s()},
                         {"peak_rss_bytes", peak_bytes()}};
    if (dropped) json["page_cache"] = {{"bytes", dropped->bytes}, {"bytes_left", dropped->bytes_left}};
    if (const auto cache = bench.model().expert_cache()) json["expert_cache"] = expert_cache_json(*cache);
    json["requests"] = ordered_json::array();
    for (const Request& request : requests) json["requests"].push_back(to_json(request, bench));
    out << json.dump(1) << '\n';
    return 0;
  }
  out << fmt::format("{}, {} layers, {}, {}, {} threads; weights {}\n", info.model_type, info.n_layers,
                     bench.model().precision().text(), kernels::kernels().isa, bench.n_threads(),
                     weight_place_text(bench.model().weight_place()))
      << (options.campaign ? campaign_text(requests, bench) : repeats_text(requests, bench));
  return 0;
}

}  // namespace kalibri::cli
