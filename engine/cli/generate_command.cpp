#include "engine/cli/generate_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/cli/interrupt.hpp"
#include "engine/cli/reply_printer.hpp"
#include "engine/cli/text_prompts.hpp"

namespace kalibri::cli {

namespace {

using nlohmann::ordered_json;

/// A prompt as the model reads it.
struct Input {
  std::string text;
  std::vector<std::int32_t> ids;
  std::optional<chat::ReplyParser> parser;  // of a question
};

class Inputs {
 public:
  Inputs(const GenerateOptions& options, const Speaker& speaker, std::ostream& notes)
      : options_(options), speaker_(speaker) {
    if (!options.is_chat) return;
    family_ = chat_family(speaker.model().info().model_type);
    check_template(family_, options.speaker.directory, options.chat, notes);
    request_ = begin_conversation(family_, options.chat);
  }

  [[nodiscard]] Input make(const std::string& text) const {
    Input input{text, {}, {}};
    if (options_.is_chat) {
      chat::ChatRequest request = request_;
      request.conversation.messages.push_back({"user", {{chat::ContentPart::Kind::text, text}}});
      const chat::Prompt prompt = chat::build_prompt(family_, request);
      input.text = prompt.text;
      input.parser = make_parser(family_, request, prompt);
    }
    const auto added = options_.is_literal ? text::AddedTokens::ignore : text::AddedTokens::find;
    input.ids = speaker_.tokenizer().encode(input.text, added);
    const auto n_prompt = static_cast<std::int64_t>(input.ids.size());
    const std::int64_t n_positions = speaker_.model().info().max_positions;
    if (n_prompt >= n_positions) {
      throw Error(ErrorCode::input, fmt::format("the prompt has {} tokens and leaves no room for an answer: the model "
                                                "has {} positions (config.json max_position_embeddings)",
                                                n_prompt, n_positions));
    }
    return input;
  }

 private:
  const GenerateOptions& options_;
  const Speaker& speaker_;
  chat::Family family_ = chat::Family::kolibri1;
  chat::ChatRequest request_;
};

ordered_json to_json(const Input& input, const Answer& answer, const Reply* reply) {
  ordered_json json = {{"prompt", input.text},
                       {"prompt_ids", input.ids},
                       {"text", answer.text},
                       {"ids", answer.generated.ids},
                       {"finish_reason", answer.end}};
  if (reply != nullptr) {
    json["reasoning"] = reply->reasoning.empty() ? ordered_json() : ordered_json(reply->reasoning);
    json["content"] = reply->content;
    json["tool_calls"] = ordered_json::array();
    for (const chat::ParsedCall& call : reply->tool_calls) {
      json["tool_calls"].push_back({{"name", call.name}, {"arguments", call.arguments}});
    }
  }
  json["prompt_s"] = answer.prompt_s;
  json["answer_s"] = answer.answer_s;
  if (answer.experts) json["experts"] = expert_statistics_json(*answer.experts, answer.n_threads);
  return json;
}

std::string dump(const ordered_json& json) {  // a prompt may be any bytes
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

int generate_command(const GenerateOptions& options, const Terminal& terminal, std::ostream& out, std::ostream& notes) {
  std::vector<std::string> texts = options.prompts;
  for (const std::string& file : options.prompt_files) texts.push_back(read_text_file(file));
  if (texts.empty()) throw Error(ErrorCode::usage, "generate: expected -p TEXT or --prompt-file FILE");
  if (options.is_chat && options.is_literal) {
    throw Error(ErrorCode::usage, "--literal goes without --chat: the template's own tokens must be found");
  }
  Speaker speaker(options.speaker, notes);
  const Inputs inputs(options, speaker, notes);
  std::vector<Input> made;
  for (const std::string& text : texts) made.push_back(inputs.make(text));

  Interrupt interrupt;
  const std::int64_t longest = speaker.model().info().max_positions;
  ordered_json answers = ordered_json::array();
  for (const Input& input : made) {
    const auto n_prompt = static_cast<std::int64_t>(input.ids.size());
    const std::int64_t n_wanted = std::min(options.speaker.max_tokens, longest - n_prompt);
    model::Generator generator = speaker.start(n_prompt + n_wanted, model::Generator::PromptState::forgotten);
    std::ostringstream kept;
    std::ostream& shown = options.json ? kept : out;
    std::optional<ReplyPrinter> printer;
    if (input.parser) printer.emplace(shown, terminal.out && !options.json, *input.parser);
    const auto write = [&](std::string_view text) {
      if (printer) {
        printer->feed(text);
      } else {
        shown << (terminal.out ? for_terminal(text) : text) << std::flush;
      }
      return shown.good();
    };
    const Answer answer =
        speaker.answer(generator, {.ids = input.ids}, write, interrupt.flag(), terminal.err ? &notes : nullptr);
    const Reply* reply = printer ? &printer->finish() : nullptr;
    if (!printer && !options.json) out << '\n' << std::flush;
    if (options.json) answers.push_back(to_json(input, answer, reply));
    if (options.speaker.stats) notes << stats_line(answer);
    if (interrupt.flag() || !shown) break;
  }
  if (options.json) {
    ordered_json json = {{"model_type", speaker.model().info().model_type},
                         {"precision", speaker.model().precision().text()},
                         {"seed", speaker.sampling().seed}};
    if (const auto cache = speaker.model().expert_cache()) json["expert_cache"] = expert_cache_json(*cache);
    json["answers"] = std::move(answers);
    out << dump(json) << '\n';
  }
  return interrupt.flag() ? kInterrupted : 0;
}

}  // namespace kalibri::cli
