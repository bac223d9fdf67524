#include "engine/cli/dump_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/check.hpp"
#include "engine/base/error.hpp"
#include "engine/cli/forced_choices.hpp"
#include "engine/cli/peak_memory.hpp"
#include "engine/cli/positions.hpp"
#include "engine/kernels/codec.hpp"
#include "oracle/dump/reader.hpp"
#include "oracle/dump/writer.hpp"

namespace kalibri::cli {

namespace {

constexpr std::int64_t kHeadRows = 64;  // positions whose logits are in memory at a time

/// Another checkpoint's dump may be meant (of the same model in another precision); it may also be a mistake.
void warn_of_other_checkpoint(const std::filesystem::path& path, const std::string& fingerprint,
                              std::ostream* warnings) {
  const std::string other = dump::Reader(path).header().checkpoint_fingerprint;
  if (warnings == nullptr || other == fingerprint) return;
  *warnings << fmt::format("kalibri: warning: {}: made from another checkpoint (fingerprint {}, here {})\n",
                           path.string(), other.empty() ? "missing" : other, fingerprint);
}

/// What a prompt keeps between layers.
struct Run {
  const Prompt* prompt = nullptr;
  model::Session session;
  std::vector<std::int32_t> positions;  // of the logits that are kept
  std::vector<float> residual;          // [T, R]
  [[nodiscard]] std::int64_t n_tokens() const { return static_cast<std::int64_t>(prompt->tokens.size()); }
};

/// Writes the tensors that a layer hands out below the current prompt.
class DumpSink final : public runtime::TapSink {
 public:
  DumpSink(dump::Writer& writer, const DumpRequest& request) : writer_(writer), keeps_layers_(!request.logits_only) {
    for (const std::string& tap : request.taps) {
      if (tap == "all") {
        keeps_all_taps_ = true;
      } else if (const auto known = dump::find_layer_tensor(tap); known.has_value() && known->is_tap) {
        taps_.insert(tap);
      } else {
        throw Error(ErrorCode::usage, fmt::format("--taps: '{}' is no tap; known: {}", tap, known_taps()));
      }
    }
  }

  void set_prompt(std::int64_t n_tokens) { n_tokens_ = n_tokens; }

  [[nodiscard]] bool wants(int, std::string_view name) const override {
    const auto known = dump::find_layer_tensor(name);
    KALIBRI_CHECK(known.has_value(), fmt::format("the model gives '{}', which the dump format does not know", name));
    return known->is_tap ? keeps_all_taps_ || taps_.contains(std::string(name)) : keeps_layers_;
  }
  void take(const runtime::TapRows<float>& rows) override { write(rows); }
  void take(const runtime::TapRows<std::int32_t>& rows) override { write(rows); }
  void take(const runtime::TapRows<std::int64_t>& rows) override { write(rows); }

 private:
  static std::string known_taps() {
    std::string names = "all";
    for (const dump::TensorName& tensor : dump::kLayerTensors) {
      if (tensor.is_tap) names += fmt::format(", {}", tensor.name);
    }
    return names;
  }

  template <typename T>
  void write(const runtime::TapRows<T>& rows) {
    std::int64_t n = rows.n_rows;
    for (const std::int64_t dim : rows.dims) n *= dim;
    writer_.write_rows(dump::layer_path(rows.layer, rows.name), n_tokens_, rows.dims, rows.first_pos,
                       std::span<const T>(rows.data, static_cast<std::size_t>(n)));
  }

  dump::Writer& writer_;
  bool keeps_layers_;
  bool keeps_all_taps_ = false;
  std::set<std::string> taps_;
  std::int64_t n_tokens_ = 0;
};

/// The other dump's residuals, as layers' inputs.
class TeacherInputs {
 public:
  TeacherInputs(const std::filesystem::path& path, const std::vector<Prompt>& prompts, const model::Model& model)
      : reader_(path), width_(model.info().residual_size()), arithmetic_(model.precision().arithmetic) {
    for (const Prompt& prompt : prompts) require_prompt(reader_, prompt);
  }

  /// The input of `layer`: the embedding, or the residual after the layer before, rounded where the model's own is.
  void load(const Prompt& prompt, std::int64_t layer, std::vector<float>& residual) const {
    read(prompt, layer, residual);
    const bool rounds = layer == 0 ? arithmetic_.rounds() : arithmetic_.residual == runtime::Arithmetic::Residual::bf16;
    if (rounds) kernels::round_to_bf16(residual.data(), std::ssize(residual));
  }

 private:
  void read(const Prompt& prompt, std::int64_t layer, std::vector<float>& residual) const {
    const std::string path = layer == 0 ? "embedding" : dump::layer_path(layer - 1, "residual");
    const auto n_rows = static_cast<std::int64_t>(prompt.tokens.size());
    const std::vector<double> values = reader_.read_f64(prompt.name, path, 0, n_rows);
    const auto n = static_cast<std::int64_t>(values.size());
    if (n == n_rows * width_) {
      std::transform(values.begin(), values.end(), residual.begin(), [](double v) { return static_cast<float>(v); });
      return;
    }
    const std::int64_t narrow = n / n_rows;  // one stream's embedding, repeated for each stream
    if (layer != 0 || narrow == 0 || width_ % narrow != 0) {
      throw Error(ErrorCode::input,
                  fmt::format("{}: {}: rows of {}, expected {}", reader_.path().string(), path, narrow, width_));
    }
    for (std::int64_t i = 0; i < n_rows * width_; ++i) {
      const std::int64_t row = i / width_;
      residual[static_cast<std::size_t>(i)] =
          static_cast<float>(values[static_cast<std::size_t>(row * narrow + i % narrow)]);
    }
  }

  dump::Reader reader_;
  std::int64_t width_;
  runtime::Arithmetic arithmetic_;
};

/// final_norm of every position, and the logits of the chosen ones.
void write_head(dump::Writer& writer, Run& run, const model::ModelInfo& info) {
  const std::int64_t hidden[] = {info.hidden_size};
  const std::int64_t vocab[] = {info.vocab_size};
  std::vector<float> final_norm(static_cast<std::size_t>(kHeadRows * info.hidden_size));
  for (std::int64_t first = 0; first < run.n_tokens(); first += kHeadRows) {
    const std::int64_t n = std::min(kHeadRows, run.n_tokens() - first);
    run.session.head(run.residual.data() + first * info.residual_size(), n, final_norm.data(), nullptr);
    writer.write_rows("final_norm", run.n_tokens(), hidden, first,
                      std::span<const float>(final_norm.data(), static_cast<std::size_t>(n * info.hidden_size)));
  }
  const auto n_rows = static_cast<std::int64_t>(run.positions.size());
  if (n_rows == 0) return;
  if (n_rows < run.n_tokens())
    writer.write_rows("positions", n_rows, {}, 0, std::span<const std::int32_t>(run.positions));
  std::vector<float> residual;  // of the rows at hand
  std::vector<float> logits(static_cast<std::size_t>(std::min(kHeadRows, n_rows) * info.vocab_size));
  for (std::int64_t first = 0; first < n_rows; first += kHeadRows) {
    const std::int64_t n = std::min(kHeadRows, n_rows - first);
    residual.clear();
    for (std::int64_t i = first; i < first + n; ++i) {
      const auto row = run.residual.begin() + run.positions[static_cast<std::size_t>(i)] * info.residual_size();
      residual.insert(residual.end(), row, row + info.residual_size());
    }
    run.session.head(residual.data(), n, final_norm.data(), logits.data());
    writer.write_rows("logits", n_rows, vocab, first,
                      std::span<const float>(logits.data(), static_cast<std::size_t>(n * info.vocab_size)));
  }
}

void run_layers(dump::Writer& writer, const model::Model& model, ThreadPool& pool, const std::vector<Prompt>& prompts,
                const DumpRequest& request, const DumpChoices& choices) {
  const model::ModelInfo& info = model.info();
  const std::int64_t end_layer = request.end_layer == 0 ? info.n_layers : request.end_layer;
  const bool teacher_forced = request.mode == "teacher-forced";
  if (request.first_layer < 0 || request.first_layer >= end_layer || end_layer > info.n_layers) {
    throw Error(ErrorCode::usage, fmt::format("--layers: expected a-b with 0 <= a <= b <= {}", info.n_layers - 1));
  }
  if (!teacher_forced && request.first_layer != 0) {
    throw Error(ErrorCode::usage,
                "--layers: a chained run starts at layer 0; use --mode teacher-forced for a later one");
  }
  std::optional<TeacherInputs> inputs;
  if (teacher_forced) inputs.emplace(request.inputs, prompts, model);

  DumpSink sink(writer, request);
  std::vector<Run> runs;
  for (const Prompt& prompt : prompts) {
    const auto n_tokens = static_cast<std::int64_t>(prompt.tokens.size());
    writer.begin_prompt(prompt.name, prompt.tokens, prompt.text_sha256);
    runs.push_back({&prompt,
                    model::Session(model, pool, {n_tokens, request.chunk}),
                    parse_positions(request.positions, n_tokens, prompt.name),
                    {}});
    Run& run = runs.back();
    run.session.force(choices.of(prompt));
    run.residual.resize(static_cast<std::size_t>(n_tokens * info.residual_size()));
    run.session.embed(prompt.tokens, run.residual.data());
    if (request.logits_only) continue;
    std::vector<float> embedding;  // the first stream of each row
    for (std::int64_t t = 0; t < n_tokens; ++t) {
      const auto row = run.residual.begin() + t * info.residual_size();
      embedding.insert(embedding.end(), row, row + info.hidden_size);
    }
    const std::int64_t hidden[] = {info.hidden_size};
    writer.write_rows("embedding", n_tokens, hidden, 0, std::span<const float>(embedding));
  }
  for (std::int64_t layer = request.first_layer; layer < end_layer; ++layer) {
    for (Run& run : runs) {
      writer.select_prompt(run.prompt->name);
      sink.set_prompt(run.n_tokens());
      if (inputs.has_value()) inputs->load(*run.prompt, layer, run.residual);
      run.session.run_layer(layer, run.prompt->tokens, run.residual.data(), &sink);
    }
    model.leave_layer(layer);
  }
  if (end_layer < info.n_layers) return;
  for (Run& run : runs) {
    writer.select_prompt(run.prompt->name);
    if (inputs.has_value()) inputs->load(*run.prompt, info.n_layers, run.residual);
    write_head(writer, run, info);
  }
}

/// One schedule of one prompt.
struct ScheduleRun {
  const Prompt* prompt = nullptr;
  const ScheduleRequest* schedule = nullptr;
  std::int64_t n_prefill = 0, n_decode = 0;
  model::Session session;

  /// Ids [first, first + n) of the prompt.
  [[nodiscard]] std::span<const std::int32_t> ids(std::int64_t first, std::int64_t n) const {
    return std::span(prompt->tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
  }
};

void write_decoded(dump::Writer& writer, const ScheduleRun& run, std::int64_t row, const std::vector<float>& logits) {
  const std::int64_t vocab[] = {std::ssize(logits)};
  writer.write_rows(fmt::format("decode/{}/logits", run.schedule->name), run.n_decode, vocab, row,
                    std::span<const float>(logits));
}

/// The prefilled tokens at once, then token by token through the whole model.
void decode_by_token(dump::Writer& writer, const model::ModelInfo& info, ScheduleRun& run) {
  std::vector<float> logits(static_cast<std::size_t>(info.vocab_size));
  if (run.n_prefill > 0) run.session.forward(run.ids(0, run.n_prefill), {});
  for (std::int64_t i = 0; i < run.n_decode; ++i) {
    run.session.forward(run.ids(run.n_prefill + i, 1), logits);
    write_decoded(writer, run, i, logits);
  }
  writer.describe_schedule(run.schedule->name, run.n_prefill, run.n_prefill);
}

/// The same, layer by layer: a token finds in a layer's caches what those before it have left there.
void decode_by_layer(dump::Writer& writer, const model::Model& model, std::vector<ScheduleRun>& runs) {
  const model::ModelInfo& info = model.info();
  const std::int64_t width = info.residual_size();
  std::vector<std::vector<float>> residuals;
  for (const ScheduleRun& run : runs) {
    const std::int64_t n = run.n_prefill + run.n_decode;
    run.session.embed(run.ids(0, n), residuals.emplace_back(static_cast<std::size_t>(n * width)).data());
  }
  for (std::int64_t layer = 0; layer < info.n_layers; ++layer) {
    for (std::size_t r = 0; r < runs.size(); ++r) {
      ScheduleRun& run = runs[r];
      float* residual = residuals[r].data();
      if (run.n_prefill > 0) run.session.run_layer(layer, run.ids(0, run.n_prefill), residual, nullptr);
      for (std::int64_t t = run.n_prefill; t < run.n_prefill + run.n_decode; ++t) {
        run.session.run_layer(layer, run.ids(t, 1), residual + t * width, nullptr);
      }
    }
    model.leave_layer(layer);
  }
  std::vector<float> final_norm(static_cast<std::size_t>(info.hidden_size));
  std::vector<float> logits(static_cast<std::size_t>(info.vocab_size));
  for (std::size_t r = 0; r < runs.size(); ++r) {
    writer.select_prompt(runs[r].prompt->name);
    for (std::int64_t i = 0; i < runs[r].n_decode; ++i) {
      const float* residual = residuals[r].data() + (runs[r].n_prefill + i) * width;
      runs[r].session.head(residual, 1, final_norm.data(), logits.data());
      write_decoded(writer, runs[r], i, logits);
    }
    writer.describe_schedule(runs[r].schedule->name, runs[r].n_prefill, runs[r].n_prefill);
  }
}

void run_schedules(dump::Writer& writer, const model::Model& model, ThreadPool& pool,
                   const std::vector<Prompt>& prompts, const DumpRequest& request, const DumpChoices& choices) {
  std::vector<ScheduleRun> runs;
  for (const Prompt& prompt : prompts) {
    const auto n_tokens = static_cast<std::int64_t>(prompt.tokens.size());
    writer.begin_prompt(prompt.name, prompt.tokens, prompt.text_sha256);
    for (const ScheduleRequest& schedule : request.schedules) {
      const std::int64_t wanted = schedule.n_prefill < 0 ? n_tokens - schedule.n_decode : schedule.n_prefill;
      const std::int64_t least = schedule.n_prefill < 0 ? 1 : 0;  // "all but n_decode" leaves something to decode after
      const std::int64_t n_prefill = std::clamp(wanted, least, n_tokens);
      const std::int64_t n_decode = std::min(schedule.n_decode, n_tokens - n_prefill);
      if (n_decode < 1) continue;
      runs.push_back({&prompt, &schedule, n_prefill, n_decode,
                      model::Session(model, pool, {n_prefill + n_decode, request.chunk})});
      runs.back().session.force(choices.of(prompt));
      if (request.by_layer) continue;
      decode_by_token(writer, model.info(), runs.back());
      runs.pop_back();  // its caches
    }
  }
  decode_by_layer(writer, model, runs);
}

}  // namespace

void run_dump(const checkpoint::Checkpoint& checkpoint, const model::Model& model, ThreadPool& pool,
              const std::vector<Prompt>& prompts, const DumpRequest& request, const std::filesystem::path& out) {
  const auto started = std::chrono::steady_clock::now();
  check_prompts(prompts, model.info());
  const DumpChoices choices(request.selection, request.experts, prompts, model.info());
  const std::string fingerprint = checkpoint::fingerprint(checkpoint);
  for (const std::filesystem::path& path : {request.inputs, request.selection, request.experts}) {
    if (!path.empty()) warn_of_other_checkpoint(path, fingerprint, request.warnings);
  }
  dump::Writer writer(out, {.producer = "kalibri",
                            .producer_version = KALIBRI_VERSION,
                            .model_type = model.info().model_type,
                            .n_streams = model.info().n_streams,
                            .mode = request.mode,
                            .checkpoint_fingerprint = fingerprint,
                            .precision = model.precision().text(),
                            .options = request.options_json});
  if (request.mode == "decode") {
    run_schedules(writer, model, pool, prompts, request, choices);
  } else {
    run_layers(writer, model, pool, prompts, request, choices);
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - started;
  writer.finish(peak_rss_bytes(), wall.count());
}

}  // namespace kalibri::cli
