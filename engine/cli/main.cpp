// `kalibri`: reads the command line, calls one command, and turns what it throws into exit statuses: 2 for unusable
// input, 4 for a fault of ours.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/cli/bench_command.hpp"
#include "engine/cli/check_dequant_command.hpp"
#include "engine/cli/compare.hpp"
#include "engine/cli/convert_command.hpp"
#include "engine/cli/dump_command.hpp"
#include "engine/cli/expert_cache_flags.hpp"
#include "engine/cli/inspect.hpp"
#include "engine/cli/parse_reply_command.hpp"
#include "engine/cli/plan_command.hpp"
#include "engine/cli/precision_help.hpp"
#include "engine/cli/render_chat_command.hpp"
#include "engine/cli/report.hpp"
#include "engine/cli/score_command.hpp"
#include "engine/cli/speaking_commands.hpp"
#include "engine/cli/tables_command.hpp"
#include "engine/cli/tokenize_command.hpp"
#include "engine/cli/verify.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "oracle/dump/error.hpp"

namespace {

constexpr int kBadInput = 2;
constexpr int kOwnFault = 4;

using Command = std::function<int()>;

const CLI::Validator kNotEmpty([](const std::string& text) { return text.empty() ? "is empty; name a file" : ""; }, "");

/// A message for a terminal: names in files may hold anything.
std::string printable(std::string text) {
  for (char& c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  }
  return text;
}

CLI::App& add_command(CLI::App& app, const std::string& name, const std::string& text, const std::string& example) {
  CLI::App* command = app.add_subcommand(name, text);
  command->footer("Example:\n  " + example);
  return *command;
}

/// Prompts, as ids or as text.
void add_prompt_options(CLI::App& command, std::string& tokens, std::vector<std::string>& prompts,
                        const std::string& otherwise) {
  CLI::Option* ids = command.add_option("--tokens", tokens, "Prompts as ids: JSON, {\"name\": [ids...], ...}");
  command
      .add_option(
          "--prompts", prompts,
          "Prompts as UTF-8 text files, raw, by the checkpoint's tokenizer.json (not with --tokens)" + otherwise)
      ->excludes(ids);
}

void add_dump(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::DumpOptions>();
  CLI::App& command = add_command(app, "dump", "Run the engine over prompts and write what it computed (HDF5)",
                                  "kalibri dump CHECKPOINT --tokens prompts.json -o engine.h5");
  command.add_option("DIR", options->directory, "Checkpoint directory")->required();
  add_prompt_options(command, options->tokens, options->prompts, "");
  command.add_option("-o,--out", options->out, "File to write")->required();
  command.add_option("--mode", options->mode, "Where a layer's input comes from")
      ->check(CLI::IsMember({"chained", "teacher-forced", "decode"}))
      ->capture_default_str();
  command.add_option("--inputs", options->inputs, "Dump whose residuals are the layers' inputs (teacher-forced)");
  command.add_option("--selection", options->selection, "Dump whose selected blocks are taken instead of the model's");
  command.add_option("--experts", options->experts, "Dump whose experts are taken instead of the model's");
  command.add_option("--layers", options->layers, "Layers a-b, or a");
  command.add_option("--taps", options->taps, "Finer tensors to write: names, or all")->delimiter(',');
  command.add_option("--prefill", options->n_prefill, "Mode decode: tokens that go through at once first");
  command.add_option("--decode", options->n_decode, "Mode decode: tokens that go through one by one");
  command.add_option("--precision", options->precision, kalibri::cli::kPrecisionHelp)->capture_default_str();
  command
      .add_option("--positions", options->positions,
                  "Rows of the logits: all, none, last:N, or a list such as 0,5,7-12")
      ->capture_default_str();
  command.add_option("--chunk", options->chunk, "Tokens that go through a layer at a time (never changes a bit)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--threads", options->n_threads, "0 = one a core (never changes a bit)");
  kalibri::cli::add_expert_cache(command, options->expert_cache);
  command.callback([&chosen, options] {
    chosen = [options] { return kalibri::cli::dump_command(*options, std::cout, std::cerr); };
  });
}

void add_inspect(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::InspectOptions>();
  CLI::App& command = add_command(app, "inspect", "Show what a checkpoint holds, and whether it is whole",
                                  "kalibri inspect CHECKPOINT --json");
  command.add_option("DIR", options->directory, "Checkpoint directory")->required();
  command.add_flag("--json", options->json, "Write JSON, with every problem");
  command.add_flag("--full-fingerprint", options->full_fingerprint,
                   "Read every byte: for the fingerprint, and to look for values that are not finite");
  command.callback(
      [&chosen, options] { chosen = [options] { return kalibri::cli::inspect_command(*options, std::cout); }; });
}

void add_convert(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::ConvertCommandOptions>();
  CLI::App& command = add_command(app, "convert", "Write an FP8 or bf16 checkpoint as an MLX directory, quantised",
                                  "kalibri convert CHECKPOINT OUT --bits 4 --attn-bits 8");
  kalibri::cli::add_convert_options(command, *options);
  command.callback([&chosen, options] {
    chosen = [options] {
      options->progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
      return kalibri::cli::convert_command(*options, std::cout, std::cerr);
    };
  });
}

void add_plan(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::PlanOptions>();
  CLI::App& command = add_command(app, "plan", "Show what fits into a memory, how fast it will be, and what more buys",
                                  "kalibri plan CHECKPOINT --ram 24G --context 16384 --measure");
  kalibri::cli::add_plan_options(command, *options);
  command.callback(
      [&chosen, options] { chosen = [options] { return kalibri::cli::plan_command(*options, std::cout); }; });
}

void add_check_dequant(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::CheckDequantOptions>();
  CLI::App& command = add_command(app, "check-dequant", "Compare an FP8 checkpoint's weights with the bf16 ones",
                                  "kalibri check-dequant Kolibri-1-FP8 Kolibri-1 --shard 1");
  kalibri::cli::add_check_dequant_options(command, *options);
  command.callback([&chosen, options] {
    chosen = [options] {
      options->progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
      return kalibri::cli::check_dequant_command(*options, std::cout);
    };
  });
}

void add_bench(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::BenchOptions>();
  CLI::App& command = add_command(app, "bench", "Time prompts and answers, beside what the memory allows",
                                  "kalibri bench CHECKPOINT -p 512 -n 64");
  kalibri::cli::add_bench_options(command, *options);
  command.callback([&chosen, options] {
    chosen = [options] {
      options->progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
      return kalibri::cli::bench_command(*options, std::cout, std::cerr);
    };
  });
}

void add_verify(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::VerifyOptions>();
  CLI::App& command = add_command(app, "verify", "Prove that the engine computes a checkpoint right: the main job",
                                  "kalibri verify CHECKPOINT --tokens prompts.json");
  command.add_option("DIR", options->directory, "Checkpoint directory")->required();
  add_prompt_options(
      command, options->tokens, options->prompts,
      "; without either, the program's own texts, or seeded ids for a checkpoint without tokenizer.json");
  command.add_option("-o,--out", options->out, "Folder of dumps and report (kalibri-report-NAME)")->check(kNotEmpty);
  command.add_option("--precision", options->precision, kalibri::cli::kPrecisionHelp)->capture_default_str();
  command.add_option("--reference-precision", options->reference_precision,
                     "What the reference computes in (default: --precision, so that like is judged with like); with "
                     "another, such as exact, the report shows what the difference between the two costs");
  command.add_option("--layers", options->layers, "Layers a-b, or a");
  command.add_option("--taps", options->taps, "Finer tensors to compare as well: names, or all")->delimiter(',');
  command
      .add_option("--positions", options->positions,
                  "Rows of the logits: all, none, last:N, or a list such as 0,5,7-12")
      ->capture_default_str();
  command.add_option("--chunk", options->chunk, "Tokens that go through a layer at a time (never changes a bit)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--threads", options->n_threads, "0 = one a core (never changes a bit)");
  kalibri::cli::add_expert_cache(command, options->expert_cache);
  command.add_option("--reference-program", options->reference_program,
                     "kalibri-reference, if not beside this program");
  command.add_option("--reference", options->reference, "The reference's fp32 dump, instead of running it");
  command.add_option("--reference64", options->reference64,
                     "With --reference: its fp64 dumps, chained and teacher-forced on the fp32 one");
  command.add_flag("--json", options->json, "Write report.json to standard output instead of tables");
  command.callback([&chosen, options] {
    chosen = [options] {
      options->colour = ::isatty(STDOUT_FILENO) != 0;
      options->progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
      options->warnings = &std::cerr;
      return kalibri::cli::verify_command(*options, std::cout);
    };
  });
}

void add_tables(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::TablesOptions>();
  CLI::App& command =
      add_command(app, "tables", "Measure the accuracy tables of a model card: what each precision costs",
                  "kalibri tables CHECKPOINT --variants bf16,mixed");
  command.add_option("DIR", options->directory, "Checkpoint directory")->required();
  command.add_option("--variants", options->variants, "fp32, bf16, 8bit, 4bit, 4bit-g32, mixed (all)")->delimiter(',');
  add_prompt_options(
      command, options->tokens, options->prompts,
      "; without either, the program's own texts, or seeded ids for a checkpoint without tokenizer.json");
  command.add_option("-o,--out", options->out, "Folder of tables.md, tables.json and dumps (kalibri-tables-NAME)")
      ->check(kNotEmpty);
  command.add_option("--reference", options->reference, "The reference's fp32 dump, instead of running it");
  command.add_option("--reference-program", options->reference_program,
                     "kalibri-reference, if not beside this program");
  command.add_option("--threads", options->n_threads, "0 = one a core (never changes a bit)");
  kalibri::cli::add_expert_cache(command, options->expert_cache);
  command.add_flag("--fresh", options->fresh, "Measure again what an earlier run left in the folder");
  command.add_flag("--keep-dumps", options->keep_dumps, "Leave each variant's dumps in the folder");
  command.add_flag("--json", options->json, "Write tables.json to standard output instead of tables");
  command.callback([&chosen, options] {
    chosen = [options] {
      options->colour = ::isatty(STDOUT_FILENO) != 0;
      options->progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
      options->warnings = &std::cerr;
      return kalibri::cli::tables_command(*options, std::cout);
    };
  });
}

void add_compare(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::CompareOptions>();
  CLI::App& command = add_command(app, "compare", "Compare two dumps, by whichever programs",
                                  "kalibri compare reference.h5 candidate.h5 --reference64 reference-f64.h5");
  command.add_option("REF", options->reference, "The dump to compare with")->required();
  command.add_option("CAND", options->candidate, "The dump to judge")->required();
  command.add_option("--reference64", options->reference64, "The reference's fp64 dumps: the floors");
  command.add_option("--window", options->window, "Position bands get an edge there")->check(CLI::Range(0, INT32_MAX));
  command.add_option("--json", options->json, "File for report.json; - for standard output")->check(kNotEmpty);
  command.callback([&chosen, options] {
    chosen = [options] {
      options->colour = ::isatty(STDOUT_FILENO) != 0;
      return kalibri::cli::compare_command(*options, std::cout);
    };
  });
}

void add_report(CLI::App& app, Command& chosen) {
  using Form = kalibri::cli::ReportOptions::Form;
  const auto options = std::make_shared<kalibri::cli::ReportOptions>();
  CLI::App& command = add_command(app, "report", "Print a report.json as tables, Markdown, HTML or JUnit XML",
                                  "kalibri report report.json --markdown");
  command.add_option("FILE", options->file, "report.json")->required();
  const auto form = [&](const char* flag, const char* text, Form value) {
    return command.add_flag_callback(
        flag, [options, value] { options->form = value; }, text);
  };
  CLI::Option* markdown = form("--markdown", "Tables for a README", Form::markdown);
  CLI::Option* html = form("--html", "One page that needs nothing else", Form::html)->excludes(markdown);
  form("--junit", "For a CI service", Form::junit)->excludes(markdown)->excludes(html);
  command.callback([&chosen, options] {
    chosen = [options] {
      options->colour = ::isatty(STDOUT_FILENO) != 0;
      return kalibri::cli::report_command(*options, std::cout);
    };
  });
}

void add_tokenize(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::TokenizeOptions>();
  CLI::App& command =
      add_command(app, "tokenize", "Write the token ids of texts", "kalibri tokenize CHECKPOINT \"Der Kolibri\"");
  command.add_option("FILE", options->tokenizer, "tokenizer.json, or a directory that holds one")->required();
  // Any number, though CLI11 is told of many: it would take a text in brackets for a list of texts otherwise.
  command.add_option("TEXT", options->texts, "Texts; after -- also those that begin with a dash")
      ->expected(1 << 20, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("...");
  command.add_flag("--jsonl", options->jsonl,
                   "Answer lines of standard input: {\"text\": ...} or {\"bytes_b64\": ...} with {\"ids\": [...]}, "
                   "{\"decode\": [ids], \"skip_special\": bool} with {\"text\": ..., \"stream\": [...]}");
  command.callback([&chosen, options] {
    chosen = [options] { return kalibri::cli::tokenize_command(*options, std::cin, std::cout, std::cerr); };
  });
}

void add_render_chat(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::RenderChatOptions>();
  CLI::App& command = add_command(app, "render-chat", "Write the prompts of conversations, a line for a line",
                                  "kalibri render-chat kolibri1 --jsonl < conversations.jsonl");
  command.add_option("MODEL", options->model_type, "Whose prompts: kolibri1 or qwen4_exp")->required();
  command.add_flag("--jsonl", options->jsonl, "Lines of {\"vars\": ...} or {\"request\": ...} on standard input");
  command.callback([&chosen, options] {
    chosen = [options] { return kalibri::cli::render_chat_command(*options, std::cin, std::cout, std::cerr); };
  });
}

void add_parse_reply(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::ParseReplyOptions>();
  CLI::App& command =
      add_command(app, "parse-reply", "Part replies into reasoning, content and tool calls, a line for a line",
                  "kalibri parse-reply --jsonl < replies.jsonl");
  command.add_flag("--jsonl", options->jsonl,
                   "Lines of {\"format\": \"hermes\" or \"qwen_xml\", \"think_open_in_prompt\", \"tools\", \"text\", "
                   "\"chunks\"} on standard input");
  command.callback([&chosen, options] {
    chosen = [options] { return kalibri::cli::parse_reply_command(*options, std::cin, std::cout); };
  });
}

void add_score(CLI::App& app, Command& chosen) {
  const auto options = std::make_shared<kalibri::cli::ScoreOptions>();
  CLI::App& command = add_command(app, "score", "How well a model answers prompts whose answers are known, greedily",
                                  "kalibri score CHECKPOINT --prompts held-out.jsonl");
  command.add_option("DIR", options->directory, "Checkpoint directory with tokenizer.json")->required();
  command
      .add_option(
          "--prompts", options->prompts,
          "Lines of {\"kind\", \"language\", \"text\", \"answer\", \"tools\"}; kinds chat and tool are replies, "
          "which are parted")
      ->required();
  command.add_option("--precision", options->precision, kalibri::cli::kPrecisionHelp)->capture_default_str();
  command.add_option("--threads", options->n_threads, "0 = one a core (never changes a bit)");
  kalibri::cli::add_expert_cache(command, options->expert_cache);
  command.add_flag("--json", options->json, "Write JSON instead of a table");
  command.callback([&chosen, options] {
    chosen = [options] { return kalibri::cli::score_command(*options, std::cout, std::cerr); };
  });
}

/// Runs the command; what it printed must have arrived.
int run_command(const Command& command) {
  const int status = command();
  std::cout.flush();
  if (!std::cout) {
    throw kalibri::Error(kalibri::ErrorCode::file, "standard output: cannot be written (closed, or the disk is full)");
  }
  return status;
}

/// The kernels that will run, or a refusal of what KALIBRI_ISA asks for.
const char* isa() {
  try {
    return kalibri::kernels::kernels().isa;
  } catch (const std::runtime_error& error) {
    throw kalibri::Error(kalibri::ErrorCode::usage, error.what());
  }
}

int run(int argc, char** argv) {
  CLI::App app("Kalibri runs mixture-of-experts language models and proves that they are computed right.", "kalibri");
  app.require_subcommand(1);
  app.set_version_flag("--version", [] { return std::string("kalibri " KALIBRI_VERSION " (kernels: ") + isa() + ")"; });
  Command chosen;
#ifdef KALIBRI_MUTANTS
  std::string mutant;
  app.add_option("--mutant", mutant, "The deliberate defect to switch on");
#endif
  add_verify(app, chosen);
  add_tables(app, chosen);
  add_inspect(app, chosen);
  kalibri::cli::add_generate(app, chosen);
  kalibri::cli::add_chat(app, chosen);
  add_dump(app, chosen);
  add_bench(app, chosen);
  add_plan(app, chosen);
  add_convert(app, chosen);
  add_check_dequant(app, chosen);
  add_compare(app, chosen);
  add_report(app, chosen);
  add_score(app, chosen);
  add_tokenize(app, chosen);
  add_render_chat(app, chosen);
  add_parse_reply(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
  isa();
#ifdef KALIBRI_MUTANTS
  kalibri::mutation::activate(mutant);
  const int status = run_command(chosen);
  if (!mutant.empty() && !kalibri::mutation::reached()) {
    throw kalibri::Error(kalibri::ErrorCode::usage,
                         "--mutant: no expression that ran has a defect called '" + mutant + "'");
  }
  return status;
#else
  return run_command(chosen);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const kalibri::Error& error) {
    std::cerr << "kalibri: " << printable(error.what()) << '\n';
    return kBadInput;
  } catch (const kalibri::dump::Error& error) {
    std::cerr << "kalibri: " << printable(error.what()) << '\n';
    return kBadInput;
  } catch (const std::bad_alloc&) {
    std::cerr
        << "kalibri: the system gives no more memory; fewer tokens at a time, threads or kept experts take less\n";
    return kBadInput;
  } catch (const std::exception& error) {
    std::cerr << "kalibri: internal fault: " << printable(error.what())
              << "\nPlease report this with the command that led here.\n";
    return kOwnFault;
  }
}
