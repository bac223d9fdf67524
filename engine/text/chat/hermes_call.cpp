// Kolibri's tool calls.
#include "engine/text/chat/strip.hpp"
#include "engine/text/chat/tool_call.hpp"

namespace kalibri::chat {

namespace {

/// The text of the arguments object; nothing when there is none.
std::optional<std::string> arguments_text(const Json* arguments, std::string_view body) {
  if (arguments == nullptr) return "{}";
  if (arguments->is(Json::Kind::object))
    return std::string(body.substr(arguments->begin, arguments->end - arguments->begin));
  if (!arguments->is(Json::Kind::string)) return std::nullopt;
  const std::string_view text = strip(arguments->text);
  if (text.empty()) return "{}";
  const std::optional<Json> inner = parse_json(text);
  if (!inner || !inner->is(Json::Kind::object)) return std::nullopt;
  return std::string(text);
}

}  // namespace

std::optional<ParsedCall> parse_hermes_call(std::string_view body) {
  const std::optional<Json> object = parse_json(body);
  if (!object) return std::nullopt;
  const Json* name = object->find("name");
  if (name == nullptr || !name->is(Json::Kind::string) || name->text.empty()) return std::nullopt;
  std::optional<std::string> arguments = arguments_text(object->find_value("arguments"), body);
  if (!arguments) return std::nullopt;
  return ParsedCall{name->text, std::move(*arguments)};
}

}  // namespace kalibri::chat
