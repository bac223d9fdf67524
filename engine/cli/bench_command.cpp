#include "engine/cli/bench_command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/cli/peak_memory.hpp"
#include "engine/cli/precision_help.hpp"
#include "engine/cli/seeded_prompts.hpp"
#include "engine/cli/thread_count.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/model/generator.hpp"
#include "engine/runtime/read_rate.hpp"

namespace kalibri::cli {

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;
using runtime::PhaseClock;

constexpr double kGiga = 1e9;

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

  [[nodiscard]] double rate() const { return seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0; }
  [[nodiscard]] double bytes_per_second() const { return static_cast<double>(weight_bytes) / seconds; }
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
  explicit Bench(const BenchOptions& options)
      : options_(options),
        checkpoint_(checkpoint::Checkpoint::open(options.directory)),
        model_(checkpoint_, runtime::Precision::parse(options.precision)),
        pool_(thread_count(options.n_threads)) {
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
    auto end_stretch = [&clock, since = Clock::now()](Stretch& stretch, std::int64_t n_tokens) mutable {
      clock.enter(runtime::Phase::other);
      stretch = {n_tokens, seconds_since(since), clock.seconds(), clock.weight_bytes()};
      clock.reset();
      since = Clock::now();
    };
    bool is_first = true;
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
  checkpoint::Checkpoint checkpoint_;
  model::Model model_;
  ThreadPool pool_;
  runtime::ReadRate read_rate_;
};

/// Asks the system to forget what it has of the checkpoint's files. Files in use elsewhere may stay.
void drop_from_page_cache(const std::string& directory) {
  std::vector<std::filesystem::path> files;
  {
    const auto checkpoint = checkpoint::Checkpoint::open(directory);
    for (const checkpoint::SafetensorsFile& shard : checkpoint.shards()) files.push_back(shard.path());
  }  // what is mapped stays in memory
  for (const std::filesystem::path& file : files) {
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) continue;
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
  }
}

ordered_json to_json(const Stretch& stretch) {
  ordered_json phases;
  for (std::size_t i = 0; i < runtime::kPhases; ++i) phases[runtime::kPhaseNames[i]] = stretch.phases[i];
  return {{"tokens", stretch.n_tokens},
          {"seconds", stretch.seconds},
          {"tokens_per_second", stretch.rate()},
          {"weight_bytes", stretch.weight_bytes},
          {"phases_s", phases}};
}

ordered_json to_json(const Request& request) {
  return {{"name", request.name},
          {"reused", request.n_reused},
          {"prompt", to_json(request.prompt)},
          {"answer", to_json(request.answer)},
          {"read_bytes_per_second", request.read_rate}};
}

std::string share_text(const Stretch& stretch) {
  std::string text;
  for (std::size_t i = 0; i < runtime::kPhases; ++i) {
    const double share = stretch.phases[i] / stretch.seconds;
    if (share >= 0.005)
      text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", runtime::kPhaseNames[i], 100 * share);
  }
  return text;
}

/// The median of a number over the requests.
template <typename Number>
double median_of(const std::vector<Request>& requests, Number number) {
  std::vector<double> values;
  for (const Request& request : requests) values.push_back(number(request));
  return median(values);
}

std::string repeats_text(const std::vector<Request>& requests) {
  const double answer_rate = median_of(requests, [](const Request& r) { return r.answer.rate(); });
  const double share = median_of(requests, [](const Request& r) { return r.answer.bytes_per_second() / r.read_rate; });
  const Request& last = requests.back();
  return fmt::format("prompt    {:>6} tokens  {:>9.2f} tok/s  ({})\n", last.prompt.n_tokens,
                     median_of(requests, [](const Request& r) { return r.prompt.rate(); }), share_text(last.prompt)) +
         fmt::format("answer    {:>6} tokens  {:>9.2f} tok/s  ({})\n", last.answer.n_tokens, answer_rate,
                     share_text(last.answer)) +
         fmt::format("weights   {:.3f} GB a token of the answer: {:.1f} GB/s, {:.2f} of the read-sum of {:.1f} GB/s\n",
                     static_cast<double>(last.answer.weight_bytes) / static_cast<double>(last.answer.n_tokens) / kGiga,
                     median_of(requests, [](const Request& r) { return r.answer.bytes_per_second() / kGiga; }), share,
                     median_of(requests, [](const Request& r) { return r.read_rate / kGiga; }));
}

std::string campaign_text(const std::vector<Request>& requests) {
  std::string text =
      "| request | prompt tokens | reused | first token s | prompt tok/s | answer tok/s |\n|---|---|---|---|---|---|\n";
  for (const Request& r : requests) {
    text += fmt::format("| {} | {} | {} | {:.3f} | {:.2f} | {:.2f} |\n", r.name, r.prompt.n_tokens + r.n_reused,
                        r.n_reused, r.prompt.seconds, r.prompt.rate(), r.answer.rate());
  }
  return text;
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
  command.add_flag("--campaign", options.campaign,
                   "A cold request, its repeat, and four other prompts, as a server would see them");
  command.add_flag("--json", options.json, "Write JSON");
}

int bench_command(const BenchOptions& options, std::ostream& out) {
  if (options.campaign) drop_from_page_cache(options.directory);
  Bench bench(options);
  const std::vector<Request> requests = options.campaign ? bench.campaign() : bench.repeats();
  const model::ModelInfo& info = bench.model().info();
  if (options.json) {
    ordered_json json = {{"model_type", info.model_type},
                         {"layers", info.n_layers},
                         {"precision", bench.model().precision().text()},
                         {"isa", kernels::kernels().isa},
                         {"threads", bench.n_threads()},
                         {"chunk", options.chunk},
                         {"campaign", options.campaign},
                         {"peak_rss_bytes", peak_rss_bytes()},
                         {"requests", ordered_json::array()}};
    for (const Request& request : requests) json["requests"].push_back(to_json(request));
    out << json.dump(1) << '\n';
    return 0;
  }
  out << fmt::format("{}, {} layers, {}, {}, {} threads\n", info.model_type, info.n_layers,
                     bench.model().precision().text(), kernels::kernels().isa, bench.n_threads())
      << (options.campaign ? campaign_text(requests) : repeats_text(requests))
      << fmt::format("memory    {:.2f} GiB at most\n", static_cast<double>(peak_rss_bytes()) / (1 << 30));
  return 0;
}

}  // namespace kalibri::cli
