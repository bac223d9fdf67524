// The program kalibri-train: trains the nano models, says what they are worth, and exports them. Exit statuses: 0 done,
// 2 bad input, 4 a fault of ours.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "reference/error.hpp"
#include "reference/training/export.hpp"
#include "reference/training/layouts.hpp"
#include "reference/training/run_file.hpp"
#include "reference/training/train.hpp"

namespace {

using namespace kalibri::reference::training;

constexpr int kBadInput = 2;
constexpr int kOwnFault = 4;

void add_train(CLI::App& app, TrainOptions& options) {
  CLI::App* train = app.add_subcommand("train", "Train a model, or go on with a run that was stopped or killed");
  train->footer("Example:\n  kalibri-train train kolibri1 --ids ids.jsonl --run run");
  train->add_option("MODEL", options.model_type)->required()->check(CLI::IsMember({"kolibri1", "qwen4_exp"}));
  train
      ->add_option("--ids", options.ids, R"(Documents, {"ids": [...]} a line, as kalibri tokenize --jsonl writes them)")
      ->required();
  train->add_option("--run", options.run, "Folder of the run's state; an existing one is continued")->required();
  train->add_option("--size", options.size)->check(CLI::IsMember({"nano", "tiny"}))->capture_default_str();
  train->add_option("--steps", options.n_steps, "Steps of the whole run")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train->add_option("--stop-after", options.stop_after, "Steps of this session (0: all)")->capture_default_str();
  train->add_option("--rows", options.n_rows, "Rows of a batch")->check(CLI::PositiveNumber)->capture_default_str();
  train->add_option("--row-tokens", options.row_tokens)->check(CLI::Range(8, 8192))->capture_default_str();
  train->add_option("--rate", options.rate, "Highest learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  train->add_option("--warmup", options.n_warmup, "Steps in which it rises")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train->add_option("--save-seconds", options.save_seconds, "Time from one state to the next")->capture_default_str();
  train->add_option("--log-every", options.log_every, "Steps a line")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train->add_option("--seed", options.seed, "Of the first weights")->capture_default_str();
  train->add_option("--threads", options.threads)->check(CLI::Range(1, 1024))->capture_default_str();
  train->final_callback([&options] { kalibri::reference::training::train(options); });
}

void add_score(CLI::App& app, ScoreOptions& options) {
  CLI::App* command = app.add_subcommand("score", "How well a run answers held-out prompts, greedily");
  command->footer("Example:\n  kalibri-train score run --prompts prompts.ids.jsonl --whole whole.ids.jsonl");
  command->add_option("RUN", options.run)->required();
  command->add_option("--prompts", options.prompts, "Ids of the prompts, a line each")->required();
  command->add_option("--whole", options.whole, "Ids of the prompts with their answers")->required();
  command->add_option("--threads", options.threads)->check(CLI::Range(1, 1024))->capture_default_str();
  command->final_callback([&options] {
    const Score s = kalibri::reference::training::score(options);
    fmt::print(
        "{} prompts: {:.1f} % of the answers exact, {:.1f} % of their tokens right; {:.3f} nats a token of an answer, "
        "{:.3f} of a prompt\n",
        s.n_prompts, 100 * s.exact, 100 * s.token_accuracy, s.answer_nats, s.prompt_nats);
  });
}

struct ExportArguments {
  std::filesystem::path run, tokenizer, out;
  bool exact = false;
};

void add_export(CLI::App& app, ExportArguments& arguments) {
  CLI::App* command = app.add_subcommand("export", "Write a run's model as a checkpoint in the released layout");
  command->footer("Example:\n  kalibri-train export run --tokenizer tokenizer.json model");
  command->add_option("RUN", arguments.run)->required();
  command->add_option("OUT", arguments.out, "New folder")->required();
  command->add_option("--tokenizer", arguments.tokenizer, "tokenizer.json to go with it")->check(CLI::ExistingFile);
  command->add_flag("--exact", arguments.exact, "All weights in F32, for comparisons");
  command->final_callback([&arguments] {
    const RunState state = read_run_state(arguments.run);
    export_checkpoint(layout_of(state.model_type, state.size), state.values, arguments.tokenizer, arguments.out,
                      arguments.exact);
  });
}

int run_program(int argc, char** argv) {
  CLI::App app{"Trains the small models that speak of lighthouses.", "kalibri-train"};
  app.require_subcommand(1);
  TrainOptions train_options;
  ScoreOptions score_options;
  ExportArguments export_arguments;
  add_train(app, train_options);
  add_score(app, score_options);
  add_export(app, export_arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const kalibri::reference::Error& error) {
    fmt::print(stderr, "kalibri-train: {}\n", error.what());
    return kBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kalibri-train: internal fault, please report: {}\n", error.what());
    return kOwnFault;
  }
}
