// The program kalibri-reference: reads the command line, runs, and turns errors into exit statuses: 0 done, 2 bad
// input, 4 a fault of ours.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>

#include "oracle/dump/error.hpp"
#include "reference/error.hpp"
#include "reference/run.hpp"

namespace {

using kalibri::reference::Options;

constexpr int kBadInput = 2;
constexpr int kOwnFault = 4;

constexpr const char* kExample = R"(Example:
  echo '{"hello": [38241, 11, 220]}' > tokens.json
  kalibri-reference run Kolibri-1 --tokens tokens.json --dtype f64 -o reference64.h5)";

void add_run(CLI::App& app, Options& options) {
  CLI::App* run = app.add_subcommand("run", "Run prompts through a checkpoint and write a dump");
  run->footer(kExample);
  run->add_option("DIR", options.directory, "Checkpoint: config.json and *.safetensors")->required();
  run->add_option("--tokens", options.tokens, R"(Prompts as token ids: {"name": [ids...], ...})")->required();
  run->add_option("-o,--out", options.out, "Dump to write (HDF5)")->required();
  run->add_option("--dtype", options.dtype, "Element type of the arithmetic")
      ->check(CLI::IsMember({"f32", "f64"}))
      ->capture_default_str();
  run->add_option("--precision", options.precision,
                  "native (weights as stored), exact, mixed-4-8, bf16, production, or KEY=VALUE,... as kalibri has it")
      ->capture_default_str();
  run->add_option("--mode", options.mode, "Input of a layer: the previous layer's output, or that of --inputs")
      ->check(CLI::IsMember({"chained", "teacher-forced"}))
      ->capture_default_str();
  run->add_option("--inputs", options.inputs, "Dump whose residuals are the layers' inputs (teacher-forced)");
  run->add_option("--layers", options.layers, "Layers to run: a-b or a (default: all)");
  run->add_option("--taps", options.taps, "Finer tensors to write: a list such as q,k, or all");
  run->add_option("--positions", options.positions, "Rows of the logits: all, none, last:N, or a list such as 0,5,7-12")
      ->capture_default_str();
  run->add_option("--threads", options.threads, "0 = one a core")->check(CLI::Range(0, 1024));
  run->add_flag("--full-fingerprint", options.full_fingerprint,
                "Fingerprint all bytes of the checkpoint, not a sample");
  run->final_callback([&options] {
    const bool forced = options.mode == "teacher-forced";
    if (forced && options.inputs.empty()) throw CLI::ValidationError("--mode", "teacher-forced needs --inputs DUMP");
    if (!forced && !options.inputs.empty()) throw CLI::ValidationError("--inputs", "only with --mode teacher-forced");
    if (options.out.empty()) throw CLI::ValidationError("--out", "is empty; name the file to write");
    std::error_code ignored;  // what is not there is another file
    if (std::filesystem::equivalent(options.inputs, options.out, ignored)) {
      throw CLI::ValidationError("--out", "is also --inputs; name another file");
    }
  });
}

int run_program(int argc, char** argv) {
  CLI::App app{"Computes a model with LibTorch, slowly and plainly: the side that is trusted in a comparison.",
               "kalibri-reference"};
  app.footer(kExample);
  app.set_version_flag("--version", [] {
    return fmt::format("kalibri-reference {} ({})", KALIBRI_VERSION, kalibri::reference::arithmetic_text());
  });
  app.require_subcommand(1);
  Options options;
  add_run(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
  kalibri::reference::run(options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const kalibri::reference::Error& error) {
    fmt::print(stderr, "kalibri-reference: {}\n", error.what());
    return kBadInput;
  } catch (const kalibri::dump::Error& error) {
    fmt::print(stderr, "kalibri-reference: {}\n", error.what());
    return kBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kalibri-reference: internal fault, please report: {}\n", error.what());
    return kOwnFault;
  }
}
