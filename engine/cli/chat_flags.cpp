#include "engine/cli/chat_flags.hpp"

#include <fmt/format.h>

#include <ostream>

#include "engine/base/error.hpp"
#include "engine/cli/text_prompts.hpp"
#include "engine/text/chat/known_template.hpp"

namespace kalibri::cli {

chat::Family chat_family(const std::string& model_type) {
  const auto family = chat::find_family(model_type);
  if (!family) throw Error(ErrorCode::config, fmt::format("model type '{}' has no known chat template", model_type));
  return *family;
}

chat::ChatRequest begin_conversation(chat::Family family, const ChatFlags& flags) {
  std::string body = R"({"messages": [{"role": "user", "content": ""}])";
  if (!flags.effort.empty()) body += ", \"reasoning_effort\": " + chat::json_quoted(flags.effort);
  if (flags.no_think) body += R"(, "chat_template_kwargs": {"enable_thinking": false})";
  auto json = chat::parse_json(body + '}');
  if (!json) throw Error(ErrorCode::usage, "--effort: no UTF-8");
  if (!flags.tools_file.empty()) {
    std::string wrong;
    const auto tools = chat::parse_json(read_text_file(flags.tools_file), &wrong);
    if (!tools) throw Error(ErrorCode::input, fmt::format("{}: no valid JSON: {}", flags.tools_file, wrong));
    json->keys.emplace_back("tools");
    json->items.push_back(*tools);
  }
  try {
    chat::ChatRequest request = chat::read_request(family, *json);
    request.conversation.messages.clear();
    if (!flags.system.empty()) {
      request.conversation.messages.push_back({"system", {{chat::ContentPart::Kind::text, flags.system}}});
    }
    return request;
  } catch (const chat::RequestError& error) {
    const bool is_effort = error.param() == "reasoning_effort";
    throw Error(ErrorCode::usage, (is_effort ? "--effort: " : flags.tools_file + ": ") + std::string(error.what()));
  }
}

void check_template(chat::Family family, const std::string& directory, const ChatFlags& flags, std::ostream& notes) {
  const bool has_template = chat::find_template(directory).has_value();
  const auto difference = chat::template_difference(directory, chat::known_template_sha256(family));
  if (flags.require_known_template && !has_template) {
    throw Error(ErrorCode::config, directory + ": has no chat template, and --require-known-template asks for one");
  }
  if (flags.require_known_template && difference) throw Error(ErrorCode::config, *difference);
  if (difference) notes << "kalibri: warning: " << *difference << '\n';
}

chat::ReplyFormat reply_format(chat::Family family) {
  return family == chat::Family::kolibri1 ? chat::ReplyFormat::hermes : chat::ReplyFormat::qwen_xml;
}

chat::ReplyParser make_parser(chat::Family family, const chat::ChatRequest& request, const chat::Prompt& prompt) {
  return {reply_format(family), prompt.start, request.conversation.tools};
}

}  // namespace kalibri::cli
