// `kalibri`: reads the command line, calls one command, and turns what it throws into design.md's exit statuses.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include "engine/base/error.hpp"
#include "engine/cli/dump_command.hpp"
#include "engine/cli/inspect.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "oracle/dump/error.hpp"

namespace {

constexpr int kBadInput = 2;
constexpr int kOwnFault = 4;

using Command = std::function<int()>;

CLI::App& add_command(CLI::App& app, const std::string& name, const std::string& text, const std::string& example) {
  CLI::App* command = app.add_subcommand(name, text);
  command->footer("Example:\n  " + example);
  return *command;
}

void add_dump(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::DumpOptions>();
  CLI::App& command = add_command(app, "dump", "Run the engine over prompts and write what it computed (HDF5)",
                                  "kalibri dump CHECKPOINT --tokens prompts.json -o engine.h5");
  command.add_option("DIR", options->directory, "Checkpoint directory")->required();
  command.add_option("--tokens", options->tokens, "Prompts: JSON, {\"name\": [ids...], ...}")->required();
  command.add_option("-o,--out", options->out, "File to write")->required();
  command.add_option("--mode", options->mode, "Where a layer's input comes from")
      ->check(CLI::IsMember({"chained", "teacher-forced", "decode"}))
      ->capture_default_str();
  command.add_option("--inputs", options->inputs, "Dump whose residuals are the layers' inputs (teacher-forced)");
  command.add_option("--layers", options->layers, "Layers a-b, or a");
  command.add_option("--taps", options->taps, "Finer tensors to write: names, or all")->delimiter(',');
  command.add_option("--prefill", options->n_prefill, "Mode decode: tokens that go through at once first");
  command.add_option("--decode", options->n_decode, "Mode decode: tokens that go through one by one");
  command.add_option("--precision", options->precision, "exact or native")->capture_default_str();
  command.add_option("--chunk", options->chunk, "Tokens that go through a layer at a time (never changes a bit)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--threads", options->n_threads, "0 = one a core (never changes a bit)");
  command.callback(
      [&chosen, options] { chosen = [options] { return kalibri::cli::dump_command(*options, std::cout); }; });
}

void add_inspect(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::InspectOptions>();
  CLI::App& command = add_command(app, "inspect", "Show what a checkpoint holds, and whether it is whole",
                                  "kalibri inspect CHECKPOINT --json");
  command.add_option("DIR", options->directory, "Checkpoint directory")->required();
  command.add_flag("--json", options->json, "Write JSON, with every problem");
  command.add_flag("--full-fingerprint", options->full_fingerprint,
                   "Read every byte: for the fingerprint, and to look for FP8 values that are not finite");
  command.callback(
      [&chosen, options] { chosen = [options] { return kalibri::cli::inspect_command(*options, std::cout); }; });
}

int run(int argc, char** argv) {
  CLI::App app("Kalibri runs mixture-of-experts language models and proves that they are computed right.", "kalibri");
  app.require_subcommand(1);
  app.set_version_flag("--version", [] {
    return std::string("kalibri " KALIBRI_VERSION " (kernels: ") + kalibri::kernels::kernels().isa + ")";
  });
  Command chosen;
#ifdef KALIBRI_MUTANTS
  std::string mutant;
  app.add_option("--mutant", mutant, "The deliberate defect to switch on");
#endif
  add_inspect(app, chosen);
  add_dump(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
#ifdef KALIBRI_MUTANTS
  kalibri::mutation::activate(mutant);
  const int status = chosen();
  if (!mutant.empty() && !kalibri::mutation::reached()) {
    throw kalibri::Error(kalibri::ErrorCode::usage,
                         "--mutant: no expression that ran has a defect called '" + mutant + "'");
  }
  return status;
#else
  return chosen();
#endif
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const kalibri::Error& error) {
    std::cerr << "kalibri: " << error.what() << '\n';
    return kBadInput;
  } catch (const kalibri::dump::Error& error) {
    std::cerr << "kalibri: " << error.what() << '\n';
    return kBadInput;
  } catch (const std::exception& error) {
    std::cerr << "kalibri: internal fault: " << error.what()
              << "\nPlease report this with the command that led here.\n";
    return kOwnFault;
  }
}
