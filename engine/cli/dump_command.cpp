#include "engine/cli/dump_command.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/cli/dump_run.hpp"
#include "engine/cli/text_prompts.hpp"
#include "engine/cli/thread_count.hpp"

namespace kalibri::cli {

namespace {

/// The file that a run writes is not one that it reads.
void check_out(const DumpOptions& options) {
  if (options.out.empty()) throw Error(ErrorCode::usage, "-o: empty; name the file to write");
  std::vector<std::pair<const char*, std::string>> read = {{"--inputs", options.inputs},
                                                           {"--selection", options.selection},
                                                           {"--experts", options.experts},
                                                           {"--tokens", options.tokens}};
  for (const std::string& file : options.prompts) read.emplace_back("--prompts", file);
  for (const auto& [name, file] : read) {
    std::error_code ignored;  // what is not there is another file
    if (!file.empty() && std::filesystem::equivalent(file, options.out, ignored)) {
      throw Error(ErrorCode::usage, fmt::format("-o {}: is also {}; name another file", options.out, name));
    }
  }
}

DumpRequest make_request(const DumpOptions& options) {
  check_out(options);
  DumpRequest request;
  request.selection = options.selection;
  request.experts = options.experts;
  request.mode = options.mode;
  request.inputs = options.inputs;
  request.taps = options.taps;
  request.chunk = options.chunk;
  request.positions = options.positions;
  if (!options.layers.empty()) parse_layers(options.layers, request.first_layer, request.end_layer);
  if ((options.mode == "teacher-forced") != !options.inputs.empty()) {
    throw Error(ErrorCode::usage, "--inputs REF.h5 goes with --mode teacher-forced, and that mode needs it");
  }
  const bool has_counts = options.n_prefill.has_value() || options.n_decode.has_value();
  if (options.mode != "decode") {
    if (has_counts) throw Error(ErrorCode::usage, "--prefill and --decode go with --mode decode");
    return request;
  }
  if (!options.layers.empty() || !options.taps.empty() || options.positions != "all") {
    throw Error(ErrorCode::usage,
                "--mode decode writes the logits of what it decodes: leave out --layers, --taps and --positions");
  }
  const std::int64_t everything = std::numeric_limits<std::int32_t>::max();
  const std::int64_t n_prefill = options.n_prefill.value_or(0);
  const std::int64_t n_decode = options.n_decode.value_or(everything);
  if (n_prefill < 0 || n_decode < 1) throw Error(ErrorCode::usage, "--prefill is at least 0 and --decode at least 1");
  request.schedules = {{has_counts ? fmt::format("prefill{}", n_prefill) : "all", n_prefill, n_decode}};
  return request;
}

std::string options_json(const DumpOptions& o) {
  nlohmann::ordered_json json = {{"command", "dump"},        {"directory", o.directory}, {"tokens", o.tokens},
                                 {"prompts", o.prompts},     {"mode", o.mode},           {"inputs", o.inputs},
                                 {"selection", o.selection}, {"experts", o.experts},     {"layers", o.layers},
                                 {"taps", o.taps},           {"precision", o.precision}, {"chunk", o.chunk},
                                 {"positions", o.positions}, {"threads", o.n_threads}};
  if (!o.expert_cache.size.empty()) {
    json["expert_cache"] = o.expert_cache.size;
    json["expert_reads"] = o.expert_cache.reads;
  }
  if (o.n_prefill.has_value()) json["prefill"] = *o.n_prefill;
  if (o.n_decode.has_value()) json["decode"] = *o.n_decode;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // a path may hold any bytes
}

}  // namespace

void parse_layers(const std::string& text, std::int64_t& first_layer, std::int64_t& end_layer) {
  const auto number = [&](const std::string& digits) {
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) {
      throw Error(ErrorCode::usage, fmt::format("--layers: '{}', expected a-b or a, for example 0-4", text));
    }
    return std::int64_t{std::stol(digits)};
  };
  const std::size_t dash = text.find('-');
  first_layer = number(text.substr(0, dash));
  end_layer = (dash == std::string::npos ? first_layer : number(text.substr(dash + 1))) + 1;
}

int dump_command(const DumpOptions& options, std::ostream& out, std::ostream& warnings) {
  DumpRequest request = make_request(options);
  request.options_json = options_json(options);
  request.warnings = &warnings;
  if (options.tokens.empty() == options.prompts.empty()) {
    throw Error(ErrorCode::usage, "dump: expected either --tokens FILE.json or --prompts FILE.txt...");
  }
  std::vector<Prompt> prompts;
  if (!options.tokens.empty()) prompts = read_token_file(options.tokens);
  const auto precision = runtime::Precision::parse(options.precision);
  const auto checkpoint = checkpoint::Checkpoint::open(options.directory);
  const model::Model model(checkpoint, precision, expert_cache(options.expert_cache));
  tell_expert_cache(model, warnings);
  if (!options.prompts.empty()) {
    prompts = read_text_prompts(options.prompts, options.directory, model.info(), &warnings);
  }
  ThreadPool pool(thread_count(options.n_threads));
  run_dump(checkpoint, model, pool, prompts, request, options.out);
  out << options.out << '\n';
  return 0;
}

}  // namespace kalibri::cli
