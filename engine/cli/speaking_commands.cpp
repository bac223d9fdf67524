#include "engine/cli/speaking_commands.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "engine/cli/chat_command.hpp"
#include "engine/cli/expert_cache_flags.hpp"
#include "engine/cli/generate_command.hpp"
#include "engine/cli/precision_help.hpp"
#include "engine/cli/weight_place_flag.hpp"

namespace kalibri::cli {

namespace {

Terminal find_terminal() {
  return {::isatty(STDIN_FILENO) != 0, ::isatty(STDOUT_FILENO) != 0, ::isatty(STDERR_FILENO) != 0};
}

/// An option that takes one text at a time and may be given several times. Brackets in a text stay what they are.
CLI::Option* add_texts(CLI::App& command, const std::string& name, std::vector<std::string>& texts,
                       const std::string& help) {
  return command.add_option(name, texts, help)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_sampling(CLI::App& command, SamplingFlags& flags) {
  const std::string group = "Sampling (unset: as generation_config.json recommends)";
  command.add_option("--temperature", flags.temperature, "0 to 2; 0: always the likeliest token")->group(group);
  command.add_option("--top-k", flags.top_k, "Of the k likeliest tokens only; 0: off")->group(group);
  command.add_option("--top-p", flags.top_p, "Of the fewest tokens that have this probability together")->group(group);
  command.add_option("--min-p", flags.min_p, "Of tokens with at least this part of the highest probability")
      ->group(group);
  command.add_option("--repetition-penalty", flags.repetition_penalty, "Of tokens seen before; 1: off")->group(group);
  command.add_option("--presence-penalty", flags.presence_penalty, "-2 to 2, of tokens of the answer, once")
      ->group(group);
  command.add_option("--frequency-penalty", flags.frequency_penalty, "-2 to 2, of tokens of the answer, each time")
      ->group(group);
  add_texts(command, "--logit-bias", flags.logit_bias, "ID=VALUE, -100 to 100; several times")->group(group);
  command.add_option("--seed", flags.seed, "The same seed gives the same answer; unset: by chance")->group(group);
}

void add_speaker(CLI::App& command, SpeakerFlags& flags) {
  command.add_option("DIR", flags.directory, "Checkpoint directory")->required();
  command.add_option("-n,--max-tokens", flags.max_tokens, "Longest answer, in tokens")->capture_default_str();
  add_texts(command, "--stop", flags.stop, "A text that ends the answer; several times");
  command.add_flag("--stats", flags.stats, "Numbers of tokens, speeds and times, on standard error");
  command.add_option("--precision", flags.precision, kPrecisionHelp)->capture_default_str();
  command.add_option("--chunk", flags.chunk, "Tokens that go through a layer at a time (never changes a bit)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--threads", flags.n_threads, "0 = one a core (never changes a bit)");
  add_weight_place(command, flags.weights);
  add_expert_cache(command, flags.expert_cache);
  add_sampling(command, flags.sampling);
}

void add_chat_flags(CLI::App& command, ChatFlags& flags) {
  command.add_option("--system", flags.system, "System text");
  CLI::Option* effort = command.add_option("--effort", flags.effort,
                                           "How much the model thinks: none, minimal, low, medium, high, xhigh, max");
  command.add_flag("--no-think", flags.no_think, "The model answers without thinking")->excludes(effort);
  command.add_option("--tools", flags.tools_file, "File of tools that the model may call: JSON, as in a chat request");
  command.add_flag("--require-known-template", flags.require_known_template,
                   "Refuse a checkpoint whose chat template is not the one that prompts are written after");
}

}  // namespace

void add_generate(CLI::App& app, std::function<int()>& chosen) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App& command = *app.add_subcommand("generate", "Write text after a prompt, or answer a question");
  command.footer(
      "A prompt that reads like a token of the model (for example <|im_end|>) becomes that token: --literal\n"
      "leaves it text; with --chat do not put together questions from what others wrote.\n"
      "Example:\n  kalibri generate CHECKPOINT -p \"Der Leuchtturm\" -n 100 --temperature 0\n"
      "  kalibri generate CHECKPOINT --chat -p \"What is a hummingbird?\"");
  add_speaker(command, options->speaker);
  add_texts(command, "-p,--prompt", options->prompts, "A prompt; several are answered one after the other");
  add_texts(command, "--prompt-file", options->prompt_files, "A prompt from a UTF-8 text file; several times");
  command.add_flag("--literal", options->is_literal, "No text of a prompt becomes a special token");
  command.add_flag("--ignore-eos", options->speaker.ignore_eos, "Write on where the model would end");
  CLI::Option* chat = command.add_flag("--chat", options->is_chat, "Each prompt is a question, by the chat template");
  add_chat_flags(command, options->chat);
  for (const char* flag : {"--system", "--effort", "--no-think", "--tools", "--require-known-template"}) {
    command.get_option(flag)->needs(chat);
  }
  command.add_flag("--json", options->json, "Write one JSON object at the end instead of the text");
  command.callback([&chosen, options] {
    chosen = [options] { return generate_command(*options, find_terminal(), std::cout, std::cerr); };
  });
}

void add_chat(CLI::App& app, std::function<int()>& chosen) {
  const auto options = std::make_shared<ChatOptions>();
  options->speaker.max_tokens = 4096;
  CLI::App& command = *app.add_subcommand("chat", "Talk with a model, line by line");
  command.footer("Example:\n  kalibri chat CHECKPOINT --effort low --stats");
  add_speaker(command, options->speaker);
  command.add_option("--context", options->context, "Longest conversation, in tokens")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  add_chat_flags(command, options->chat);
  command.callback([&chosen, options] {
    chosen = [options] { return chat_command(*options, find_terminal(), STDIN_FILENO, std::cout, std::cerr); };
  });
}

}  // namespace kalibri::cli
