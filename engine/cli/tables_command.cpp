#include "engine/cli/tables_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/sha256.hpp"
#include "engine/cli/dump_run.hpp"
#include "engine/cli/peak_memory.hpp"
#include "engine/cli/reference_process.hpp"
#include "engine/cli/report_directory.hpp"
#include "engine/cli/run_parts.hpp"
#include "engine/cli/seeded_prompts.hpp"
#include "engine/cli/table_variants.hpp"
#include "engine/cli/thread_count.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/text/unicode.hpp"
#include "oracle/tables/variant.hpp"
#include "reports/accuracy_tables.hpp"

namespace kalibri::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kNotFinished = "ended before it was measured; the same command goes on";

// Schedules of decode runs, as the published tables have them.
const std::vector<ScheduleRequest> kSchedules = {{"tail", -1, 8}, {"head", 0, 13}, {"bands", 0, 64}};

std::string file_sha256(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 digest;
  std::vector<char> block(std::size_t{1} << 20);
  while (file.read(block.data(), std::ssize(block)), file.gcount() > 0) {
    digest.add(block.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof()) throw Error(ErrorCode::file, fmt::format("{}: cannot be read", path.string()));
  return digest.hex();
}

json describe(const std::vector<Prompt>& prompts) {
  json list = json::array();
  for (const Prompt& prompt : prompts) {
    const std::string_view bytes(reinterpret_cast<const char*>(prompt.tokens.data()),
                                 prompt.tokens.size() * sizeof(std::int32_t));
    list.push_back({{"name", prompt.name},
                    {"T", prompt.tokens.size()},
                    {"text_sha256", prompt.text_sha256},
                    {"tokens_sha256", sha256(bytes)}});
  }
  return list;
}

/// The tables of an earlier run in this folder, or null. Throws Error(usage) when they are another checkpoint's.
json read_tables(const fs::path& path, const std::string& fingerprint) {
  std::ifstream file(path);
  json tables = json::parse(file, nullptr, false);
  const json::json_pointer other("/checkpoint/fingerprint");
  if (tables.is_object() && tables.contains(other) && tables.at(other) != fingerprint) {
    throw Error(ErrorCode::usage,
                fmt::format("{}: the tables of another checkpoint, fingerprint {}, expected {}; name another folder "
                            "with --out, or remove this one",
                            path.string(), tables.at(other).dump(), json(fingerprint).dump()));
  }
  return !tables.is_discarded() && reports::tables_error(tables).empty() ? tables : json();
}

/// Throws Error(usage) for weights that are quantised already: each variant would quantise them a second time.
void refuse_packed_weights(const checkpoint::Checkpoint& checkpoint) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor->dtype != checkpoint::Dtype::u32) continue;
    throw Error(ErrorCode::usage,
                fmt::format("{}: {}: packed codes (U32), but tables measures what each precision costs the weights "
                            "that were trained: give the FP8 or bf16 directory that this one was converted from; "
                            "what an MLX directory computes is shown by 'kalibri verify'",
                            tensor->file->path().string(), name));
  }
}

class Tables {
 public:
  Tables(const TablesOptions& options, fs::path directory, const checkpoint::Checkpoint& checkpoint)
      : options_(options),
        directory_(std::move(directory)),
        checkpoint_(checkpoint),
        variants_(choose_variants(options.variants)),
        cache_(expert_cache(options.expert_cache)),
        pool_(thread_count(options.n_threads)) {
    cache_.is_optional = true;  // most variants make other forms of the experts: that is said, not refused
    const model::ModelInfo info = model::Model(checkpoint, {}).info();
    window_ = info.window;
    if (!options.reference.empty()) reference_ = open_reference(options.reference);
    DefaultPrompts chosen =
        choose_prompts(options.tokens, options.prompts, reference_.get(), options.directory, info, options.warnings);
    prompts_ = std::move(chosen.prompts);
    tables_ = {{"format", "kalibri-tables"},
               {"version", 1},
               {"program",
                {{"name", "kalibri"},
                 {"version", KALIBRI_VERSION},
                 {"isa", kernels::kernels().isa},
                 {"sha256", file_sha256("/proc/self/exe")}}},
               {"options", all_options(chosen.source)},
               {"checkpoint",
                {{"name", text::to_utf8(checkpoint_name(options.directory))},
                 {"model_type", info.model_type},
                 {"fingerprint", checkpoint::fingerprint(checkpoint)},
                 {"n_layers", info.n_layers},
                 {"window", info.window}}},
               {"prompts", describe(prompts_)},
               {"variants", json::array()},
               {"published", reports::published_figures(info.model_type)}};
  }

  /// The folder is this run's own from here on.
  json run() {
    const json found =
        read_tables(directory_ / "tables.json", tables_.at("/checkpoint/fingerprint"_json_pointer).get<std::string>());
    const json earlier = options_.fresh ? json() : found;
    const bool fits = !earlier.is_null() && earlier.at("program") == tables_.at("program") &&
                      earlier.at("checkpoint") == tables_.at("checkpoint") &&
                      earlier.at("prompts") == tables_.at("prompts");
    take_reference(fits ? earlier : json());
    for (const TableVariant& variant : variants_) {
      measure(variant);
      save();
    }
    save();
    return tables_;
  }

 private:
  [[nodiscard]] json all_options(const std::string& prompt_source) const {
    return well_formed({{"directory", options_.directory},
                        {"variants", options_.variants},
                        {"tokens", options_.tokens},
                        {"prompts", options_.prompts},
                        {"prompt_source", prompt_source},
                        {"reference", options_.reference},
                        {"reference_program", options_.reference_program},
                        {"threads", options_.n_threads},
                        {"expert_cache", options_.expert_cache.size},
                        {"expert_reads", options_.expert_cache.reads}});
  }

  /// The given dump; that of `earlier` (may be null), and then its variants too, when the file and the program that
  /// made it are the same; else a run.
  void take_reference(const json& earlier) {
    const bool is_given = !options_.reference.empty();
    const fs::path path = is_given ? fs::path(options_.reference) : directory_ / "reference.h5";
    const fs::path program = is_given ? fs::path() : reference_program(options_.reference_program);
    const json program_sha256 = is_given ? json() : json(file_sha256(program));
    std::string sha256 = fs::exists(path) ? file_sha256(path) : "";
    const bool fits = !earlier.is_null() && earlier.at("/reference/sha256"_json_pointer) == sha256 &&
                      earlier.at("/reference/program_sha256"_json_pointer) == program_sha256;
    if (fits) {
      tables_["variants"] = earlier.at("variants");
    } else if (!is_given) {
      write_text(directory_ / "tokens.json", token_file_text(prompts_));
      const ReferenceRun run{program, options_.directory, directory_ / "tokens.json", options_.n_threads};
      step(options_.progress, "reference", [&] { run_reference(run, {"--dtype", "f32"}, path); });
      sha256 = file_sha256(path);
    }
    if (reference_ == nullptr) reference_ = open_reference(path.string());
    const dump::Header& header = reference_->header();
    tables_["reference"] = {{"file", text::to_utf8(path.filename().string())},
                            {"sha256", sha256},
                            {"program_sha256", program_sha256},
                            {"producer", header.producer},
                            {"producer_version", header.producer_version},
                            {"precision", header.precision},
                            {"checkpoint_fingerprint", header.checkpoint_fingerprint},
                            {"wall_s", reference_->wall_s()},
                            {"peak_rss_bytes", reference_->peak_rss_bytes()}};
    tables_["residual_max"] = fits ? earlier.at("residual_max") : oracle::residual_measures(*reference_);
  }

  /// The variant's place among the tables' variants, which keep their order.
  json& entry(const TableVariant& variant, const std::string& precision) {
    json& all = tables_.at("variants");
    const auto same = [&](const json& other) { return other.at("name") == variant.name; };
    const auto known = std::find_if(all.begin(), all.end(), same);
    if (known != all.end() && known->at("precision") == precision) return *known;
    const json fresh = {{"name", variant.name},
                        {"precision", precision},
                        {"status", "not_run"},
                        {"reason", kNotFinished},
                        {"wall_s", json::object()}};
    if (known != all.end()) return *known = fresh;
    auto place = all.begin();  // behind those that come before it
    for (const TableVariant& other : table_variants()) {
      if (other.name == variant.name) break;
      if (place != all.end() && place->at("name") == other.name) ++place;
    }
    return *all.insert(place, fresh);
  }

  void measure(const TableVariant& variant) {
    std::string precision = variant.precision;
    try {
      const auto parsed = runtime::Precision::parse(variant.precision);
      precision = parsed.text();
      json& result = entry(variant, precision);
      if (result.at("status") == "measured") {
        if (options_.progress != nullptr) *options_.progress << variant.name << ": measured in an earlier run\n";
        return;
      }
      result["reason"] = kNotFinished;
      const model::Model model(checkpoint_, parsed, cache_);
      if (options_.warnings != nullptr) tell_cache(variant, model, *options_.warnings);
      measure(variant, model, result);
      result["status"] = "measured";
      result["reason"] = nullptr;
    } catch (const Error& error) {
      entry(variant, precision)["reason"] = text::to_utf8(error.what());
    } catch (const dump::Error& error) {
      entry(variant, precision)["reason"] = text::to_utf8(error.what());
    }
  }

  void tell_cache(const TableVariant& variant, const model::Model& model, std::ostream& warnings) const {
    tell_expert_cache(model, warnings);
    if (!cache_.is_wanted() || model.expert_cache()) return;
    warnings << fmt::format(
        "kalibri: {}: without --expert-cache: it makes another form of the experts than is stored\n", variant.name);
  }

  void measure(const TableVariant& variant, const model::Model& model, json& result) {
    if (!result.contains("teacher_forced")) {
      const auto forced =
          dump(variant, model, result, {.mode = "teacher-forced", .inputs = reference_->path(), .positions = "none"});
      result["teacher_forced"] = oracle::teacher_forced_measures(*reference_, *forced);
      drop(*forced);
      save();
    }
    const auto chained = dump(variant, model, result, {.mode = "chained"});
    const auto decoded = dump(variant, model, result, {.mode = "decode", .schedules = kSchedules, .by_layer = true});
    result.update(oracle::chained_measures(*reference_, *chained, *decoded, window_));
    drop(*chained);
    drop(*decoded);
  }

  /// The dump of one run: what an earlier one left, when it is the same, else made now.
  std::unique_ptr<const dump::Reader> dump(const TableVariant& variant, const model::Model& model, json& result,
                                           DumpRequest request) {
    const fs::path path = directory_ / fmt::format("{}-{}.h5", variant.name, request.mode);
    json options = tables_.at("options");
    options.update({{"command", "tables"},
                    {"variant", variant.name},
                    {"program_sha256", tables_.at("/program/sha256"_json_pointer)},
                    {"reference_sha256", tables_.at("/reference/sha256"_json_pointer)}});
    request.options_json = options.dump();
    if (options_.fresh || !is_dump_of(path, model, request)) {
      if (fs::is_regular_file(path)) fs::remove(path);  // what is no dump is not written over
      step(options_.progress, fmt::format("{}, {}", variant.name, request.mode),
           [&] { run_dump(checkpoint_, model, pool_, prompts_, request, path); });
    }
    auto reader = std::make_unique<const dump::Reader>(path);
    result["wall_s"][request.mode] = reader->wall_s();
    return reader;
  }

  /// Whether `path` is a whole dump that this program made of the same prompts, reference, precision and checkpoint.
  [[nodiscard]] bool is_dump_of(const fs::path& path, const model::Model& model, const DumpRequest& request) const {
    if (!fs::exists(path)) return false;
    try {
      const dump::Reader found(path);
      const json ours = json::parse(request.options_json);
      const json theirs = json::parse(found.header().options, nullptr, false);
      const auto same = [&](const char* member) {
        return theirs.is_object() && theirs.value(member, json()) == ours.at(member);
      };
      const auto is_there = [&](const Prompt& prompt) {
        const dump::PromptInfo* other = found.find_prompt(prompt.name);
        return other != nullptr && other->tokens == prompt.tokens;
      };
      return found.header().mode == request.mode && found.header().precision == model.precision().text() &&
             found.header().checkpoint_fingerprint == tables_.at("/checkpoint/fingerprint"_json_pointer) &&
             same("program_sha256") && same("reference_sha256") && found.prompts().size() == prompts_.size() &&
             std::all_of(prompts_.begin(), prompts_.end(), is_there);
    } catch (const dump::Error&) {
      return false;  // cut short, or of another version: it is written again
    }
  }

  void drop(const dump::Reader& measured) const {
    if (!options_.keep_dumps) fs::remove(measured.path());
  }

  /// What is measured so far; the JSON last.
  void save() {
    tables_["peak_rss_bytes"] = peak_rss_bytes();
    write_text(directory_ / "tables.md", reports::tables_markdown(tables_));
    write_text(directory_ / "tables.json", tables_.dump(1) + "\n");
  }

  const TablesOptions& options_;
  fs::path directory_;
  const checkpoint::Checkpoint& checkpoint_;
  std::vector<TableVariant> variants_;
  runtime::ExpertCacheOptions cache_;
  ThreadPool pool_;
  std::int64_t window_ = 0;
  std::unique_ptr<const dump::Reader> reference_;
  std::vector<Prompt> prompts_;
  json tables_;
};

}  // namespace

int tables_command(const TablesOptions& options, std::ostream& out) {
  if (!options.tokens.empty() && !options.prompts.empty()) {
    throw Error(ErrorCode::usage, "tables: --tokens or --prompts, not both");
  }
  const auto checkpoint = checkpoint::Checkpoint::open(options.directory);
  refuse_packed_weights(checkpoint);
  const fs::path directory = options.out.empty()
                                 ? fs::path(fmt::format("kalibri-tables-{}", checkpoint_name(options.directory)))
                                 : fs::path(options.out);
  Tables tables(options, directory, checkpoint);
  const DirectoryLock lock = open_own_directory(directory, ".kalibri-tables", "kalibri tables");
  const json result = tables.run();
  if (options.json) {
    out << result.dump(1) << '\n';
  } else {
    out << reports::tables_terminal(result, options.colour) << "\nAll tables: " << (directory / "tables.md").string()
        << '\n';
  }
  return 0;
}

}  // namespace kalibri::cli
