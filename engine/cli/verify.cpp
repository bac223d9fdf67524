#include "engine/cli/verify.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "engine/base/error.hpp"
#include "engine/cli/dump_command.hpp"
#include "engine/cli/dump_run.hpp"
#include "engine/cli/floor_dumps.hpp"
#include "engine/cli/positions.hpp"
#include "engine/cli/reference_process.hpp"
#include "engine/cli/report_directory.hpp"
#include "engine/cli/run_parts.hpp"
#include "engine/cli/seeded_prompts.hpp"
#include "engine/cli/thread_count.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/text/unicode.hpp"
#include "oracle/verdict/report.hpp"
#include "oracle/verdict/rounding_unit.hpp"
#include "reports/report.hpp"

namespace kalibri::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Dump = std::unique_ptr<const dump::Reader>;

// Schedules of decode runs.
constexpr std::int64_t kTail = 8;    // the last 8 tokens decoded after a prefill of the others
constexpr std::int64_t kHead = 13;   // the first 13 from an empty cache
constexpr std::int64_t kBands = 64;  // the first 64 from an empty cache

Dump open_dump(const fs::path& path) { return std::make_unique<const dump::Reader>(path); }

/// The taps asked for, and of a model whose attention chooses blocks its choices and the scores behind them.
std::vector<std::string> taps_to_dump(std::vector<std::string> taps, const model::ModelInfo& info) {
  if (info.chooses_from == 0) return taps;
  for (const char* name : {"index_scores", "selected_blocks"}) {
    if (std::find(taps.begin(), taps.end(), name) == taps.end()) taps.emplace_back(name);
  }
  const bool is_all = std::find(taps.begin(), taps.end(), "all") != taps.end();
  return is_all ? std::vector<std::string>{"all"} : taps;
}

/// One verification: makes the dumps one after the other in its folder, and keeps them open for the report.
class Verification {
 public:
  Verification(const VerifyOptions& options, fs::path directory, const checkpoint::Checkpoint& checkpoint,
               const model::Model& model)
      : options_(options),
        directory_(std::move(directory)),
        checkpoint_(checkpoint),
        model_(model),
        reference_precision_(runtime::Precision::parse(
            options.reference_precision.empty() ? options.precision : options.reference_precision)),
        taps_(taps_to_dump(options.taps, model.info())) {
    const model::ModelInfo& info = model.info();
    if (!options.layers.empty()) parse_layers(options.layers, layers_.first, layers_.end);
    if (options.layers.empty()) layers_.end = info.n_layers;
    if (layers_.first >= layers_.end || layers_.end > info.n_layers) {
      throw Error(ErrorCode::usage, fmt::format("--layers: expected a-b with 0 <= a <= b <= {}", info.n_layers - 1));
    }
    is_whole_ = layers_.first == 0 && layers_.end == info.n_layers;
    if (!options.reference.empty()) take_given_reference();
    take_prompts();
  }

  json run() {
    write_text(directory_ / "tokens.json", token_file_text(prompts_));
    if (reference_ == nullptr) run_references();
    run_engine();
    const oracle::Dumps dumps{.reference = reference_.get(),
                              .reference_f64 = reference_f64_.get(),
                              .teacher_forced_f64 = teacher_forced_f64_.get(),
                              .teacher_forced = teacher_forced_.get(),
                              .chained = chained_.get(),
                              .repeated = repeated_.get(),
                              .decoded = decoded_.get()};
    const oracle::RunDescription description{.command = "verify",
                                             .options = all_options(),
                                             .version = KALIBRI_VERSION,
                                             .isa = kernels::kernels().isa,
                                             .checkpoint = text::to_utf8(checkpoint_name(options_.directory)),
                                             .window = model_.info().window,
                                             .layers = layers_};
    json report;
    step(options_.progress, "comparison", [&] { report = oracle::make_report(description, dumps); });
    return report;
  }

 private:
  void take_prompts() {
    DefaultPrompts chosen = choose_prompts(options_.tokens, options_.prompts, reference_.get(), options_.directory,
                                           model_.info(), options_.warnings);
    prompts_ = std::move(chosen.prompts);
    prompt_source_ = std::move(chosen.source);
    for (const Prompt& prompt : prompts_) {
      parse_positions(options_.positions, static_cast<std::int64_t>(prompt.tokens.size()), prompt.name);
    }
  }

  void take_given_reference() {
    reference_path_ = options_.reference;
    reference_ = open_reference(options_.reference);
    const std::string& theirs = reference_->header().precision;
    const std::string ours = model_.precision().text();
    if (oracle::rounding_unit(theirs) != oracle::rounding_unit(ours) && options_.warnings != nullptr) {
      *options_.warnings << fmt::format(
          "kalibri: warning: {} has precision '{}', the engine's is '{}': what the two round differently counts as "
          "the engine's error; a reference in the same one: kalibri-reference run {} --precision {}\n",
          options_.reference, theirs, ours, options_.directory, ours);
    }
    FloorDumps floors = open_floor_dumps(options_.reference64);
    reference_f64_ = std::move(floors.chained);
    teacher_forced_f64_ = std::move(floors.teacher_forced);
  }

  /// fp32 chained; then the floors, in fp64 and the same precision: chained, and with each layer fed by the first.
  void run_references() {
    const std::string from_first =
        is_whole_ ? "" : fmt::format("0-{}", layers_.end - 1);  // a chained run starts at layer 0
    reference_path_ = directory_ / "reference.h5";
    std::vector<std::string> arguments = {"--precision", reference_precision_.text()};
    reference_ = run_reference("reference.h5", from_first, arguments);
    arguments.insert(arguments.end(), {"--dtype", "f64"});
    reference_f64_ = run_reference("reference-f64.h5", from_first, arguments);
    arguments.insert(arguments.end(), {"--mode", "teacher-forced", "--inputs", reference_path_.string()});
    teacher_forced_f64_ = run_reference("reference-f64-teacher-forced.h5", options_.layers, arguments);
  }

  Dump run_reference(const std::string& name, const std::string& layers, const std::vector<std::string>& mode) {
    std::vector<std::string> more = mode;
    if (!layers.empty()) more.insert(more.end(), {"--layers", layers});
    more.insert(more.end(), {"--positions", options_.positions});
    if (!taps_.empty()) more.insert(more.end(), {"--taps", fmt::format("{}", fmt::join(taps_, ","))});
    const ReferenceRun run{reference_program(options_.reference_program), options_.directory,
                           directory_ / "tokens.json", options_.n_threads};
    step(options_.progress, name, [&] { cli::run_reference(run, more, directory_ / name); });
    return open_dump(directory_ / name);
  }

  void run_engine() {
    ThreadPool pool(thread_count(options_.n_threads));
    const auto dump = [&](const std::string& name, DumpRequest request) {
      request.chunk = options_.chunk;
      request.positions = options_.positions;
      request.options_json = all_options().dump();
      step(options_.progress, name, [&] { run_dump(checkpoint_, model_, pool, prompts_, request, directory_ / name); });
      return open_dump(directory_ / name);
    };
    teacher_forced_ = dump("engine-teacher-forced.h5", {.mode = "teacher-forced",
                                                        .inputs = reference_path_,
                                                        .first_layer = layers_.first,
                                                        .end_layer = layers_.end,
                                                        .taps = taps_});
    if (layers_.first == 0) chained_ = dump("engine.h5", {.end_layer = layers_.end, .taps = taps_});
    if (!is_whole_) return;
    repeated_ = dump("engine-repeated.h5", {.logits_only = true});
    decoded_ = dump("engine-decoded.h5",
                    {.mode = "decode", .schedules = {{"tail", -1, kTail}, {"head", 0, kHead}, {"bands", 0, kBands}}});
  }

  [[nodiscard]] json all_options() const {
    return well_formed({{"directory", options_.directory},
                        {"tokens", options_.tokens},
                        {"prompts", options_.prompts},
                        {"prompt_source", prompt_source_},
                        {"precision", options_.precision},
                        {"reference_precision", reference_->header().precision},
                        {"layers", options_.layers},
                        {"taps", options_.taps},
                        {"positions", options_.positions},
                        {"chunk", options_.chunk},
                        {"threads", options_.n_threads},
                        {"expert_cache", options_.expert_cache.size},
                        {"expert_reads", options_.expert_cache.reads},
                        {"reference_program", options_.reference_program},
                        {"reference", options_.reference},
                        {"reference64", options_.reference64}});
  }

  const VerifyOptions& options_;
  fs::path directory_;
  const checkpoint::Checkpoint& checkpoint_;
  const model::Model& model_;
  runtime::Precision reference_precision_;
  std::vector<std::string> taps_;
  oracle::LayerRange layers_;  // that are compared
  bool is_whole_ = true;       // all layers: there are logits
  std::vector<Prompt> prompts_;
  std::string prompt_source_;
  fs::path reference_path_;
  Dump reference_, reference_f64_, teacher_forced_f64_, teacher_forced_, chained_, repeated_, decoded_;
};

/// The folder is emptied first: what a run reads must not lie there.
void refuse_files_inside(const fs::path& directory, const VerifyOptions& options) {
  std::vector<std::string> files = options.reference64;
  files.insert(files.end(), {options.reference, options.tokens});
  files.insert(files.end(), options.prompts.begin(), options.prompts.end());
  for (const std::string& file : files) {
    std::error_code ignored;  // what is not there is elsewhere
    if (!file.empty() && fs::equivalent(fs::absolute(file).parent_path(), directory, ignored)) {
      throw Error(ErrorCode::usage,
                  fmt::format("{}: lies in the folder that this run writes; name another with --out", file));
    }
  }
}

}  // namespace

int verify_command(const VerifyOptions& options, std::ostream& out) {
  if (options.reference.empty() && !options.reference64.empty()) {
    throw Error(ErrorCode::usage, "--reference64 goes with --reference R.h5");
  }
  if (!options.reference.empty() && !options.reference_precision.empty()) {
    throw Error(ErrorCode::usage, "--reference-precision is for a reference that is run; --reference has its own");
  }
  if (!options.tokens.empty() && !options.prompts.empty()) {
    throw Error(ErrorCode::usage, "verify: --tokens or --prompts, not both");
  }
  const auto precision = runtime::Precision::parse(options.precision);
  const auto checkpoint = checkpoint::Checkpoint::open(options.directory);
  const model::Model model(checkpoint, precision, expert_cache(options.expert_cache));
  if (options.warnings != nullptr) tell_expert_cache(model, *options.warnings);
  const fs::path directory = options.out.empty()
                                 ? fs::path(fmt::format("kalibri-report-{}", checkpoint_name(options.directory)))
                                 : fs::path(options.out);
  refuse_files_inside(directory, options);
  Verification verification(options, directory, checkpoint, model);  // refuses before an old report is removed
  const DirectoryLock lock = open_report_directory(directory);
  const json report = verification.run();
  write_report(directory, report);
  if (options.json) {
    out << report.dump(1) << '\n';
  } else {
    out << reports::terminal(report, options.colour) << "Report: " << (directory / "report.html").string() << '\n';
  }
  return report.at("verdict").at("exit_status").get<int>();
}

}  // namespace kalibri::cli
