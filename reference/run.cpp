#include "reference/run.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>

#include "reference/error.hpp"
#include "reference/inputs.hpp"
#include "reference/model.hpp"
#include "reference/recorder.hpp"

namespace kalibri::reference {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLogitBlock = std::int64_t{1} << 25;  // elements of logits that are in memory at once

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The largest resident set of this process so far (VmHWM).
std::int64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

/// Says on a terminal how far a long run is.
void show_progress(Clock::time_point start, std::int64_t n_done, std::int64_t n_layers) {
  if (::isatty(STDERR_FILENO) == 0 || seconds_since(start) < 2.0) return;
  std::fprintf(stderr, "\r%ld of %ld layers, %.1f s%s", n_done, n_layers, seconds_since(start),
               n_done == n_layers ? "\n" : "");
}

dump::Header make_header(const Options& options, const Checkpoint& checkpoint, const Model& model) {
  return {.producer = "kalibri-reference",
          .producer_version = KALIBRI_VERSION,
          .model_type = model.model_type,
          .n_streams = model.n_streams,
          .mode = options.mode,
          .checkpoint_fingerprint = fingerprint(checkpoint, options.full_fingerprint),
          .precision = precision_text(parse_precision(options.precision)),
          .options = options_json(options, at::get_num_threads(), arithmetic_text())};
}

/// The chosen rows' logits, in blocks of rows: for a long prompt they are far larger than the model's layers.
void write_logits(const Model& model, const Rounding& r, const at::Tensor& final_norm, std::span<const Prompt> prompts,
                  std::span<const std::vector<std::int32_t>> positions, Recorder& recorder) {
  const Linear head = r.linear(model.head);
  const std::int64_t block = std::max<std::int64_t>(1, kLogitBlock / model.vocab_size);
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const Prompt& prompt = prompts[p];
    const auto n_rows = static_cast<std::int64_t>(positions[p].size());
    if (n_rows == 0) continue;
    const at::Tensor rows = at::tensor(positions[p], at::kInt);
    if (n_rows != prompt.n_rows()) recorder.write_prompt(prompt, "positions", n_rows, 0, rows);
    const at::Tensor f = final_norm.slice(0, prompt.first_row, prompt.end_row()).index_select(0, rows);
    for (std::int64_t row = 0; row < n_rows; row += block) {
      const at::Tensor logits = r.unless_served(head(f.slice(0, row, std::min(row + block, n_rows))));
      recorder.write_prompt(prompt, "logits", n_rows, row, logits);
    }
  }
}

void run_unguarded(const Options& options) {
  const Clock::time_point start = Clock::now();
  const at::ScalarType dtype = options.dtype == "f64" ? at::kDouble : at::kFloat;
  if (options.threads > 0) at::set_num_threads(options.threads);

  const Checkpoint checkpoint(options.directory);
  const Rounding rounding(parse_precision(options.precision), dtype);
  const Model model = open_model(checkpoint, rounding);
  const std::vector<Prompt> prompts = read_prompts(options.tokens, model.vocab_size, model.max_position_embeddings);
  const LayerRange layers = parse_layers(options, model.n_layers);
  const bool with_logits = layers.end == model.n_layers;
  std::vector<std::vector<std::int32_t>> positions;
  for (const Prompt& prompt : prompts)
    positions.push_back(parse_positions(options.positions, prompt.n_rows(), prompt.name));
  std::optional<Inputs> inputs;
  if (options.mode == "teacher-forced") {
    inputs.emplace(options.inputs, prompts, layers, with_logits, model.n_streams, model.hidden_size);
  }
  const std::vector<std::string_view> taps = parse_taps(options.taps, model.taps);
  dump::Writer writer(options.out, make_header(options, checkpoint, model));
  Recorder recorder(writer, prompts, taps);

  const at::Tensor embedding = model.embed(prompts);
  recorder.write("embedding", 0, embedding);
  at::Tensor residual = embedding.repeat({1, model.n_streams});
  for (std::int64_t layer = layers.first; layer < layers.end; ++layer) {
    if (inputs) residual = inputs->residual_before(layer, dtype);
    const Record record = [&](std::string_view name, std::int64_t first_row, const at::Tensor& rows) {
      recorder.write_layer(layer, name, first_row, rows);
    };
    residual = model.run_layer(layer, residual, prompts, record);
    record("residual", 0, residual);
    show_progress(start, layer + 1 - layers.first, layers.end - layers.first);
  }
  if (with_logits) {
    if (inputs) residual = inputs->residual_before(model.n_layers, dtype);
    const at::Tensor final_norm = model.final_norm(residual);
    recorder.write("final_norm", 0, final_norm);
    write_logits(model, rounding, final_norm, prompts, positions, recorder);
  }
  writer.finish(peak_rss_bytes(), seconds_since(start));
}

}  // namespace

void run(const Options& options) {
  const c10::InferenceMode no_gradients;
  try {
    run_unguarded(options);
  } catch (const c10::Error& error) {
    throw InternalError(error.what_without_backtrace());
  }
}

std::string arithmetic_text() {
  const std::string build = at::show_config();
  const std::string_view key = "CPU capability usage: ";
  const std::size_t begin = build.find(key);
  const std::string isa = begin == std::string::npos
                              ? "unknown instruction set"
                              : build.substr(begin + key.size(), build.find('\n', begin) - begin - key.size());
  return "LibTorch " KALIBRI_TORCH_VERSION ", " + isa;
}

}  // namespace kalibri::reference
