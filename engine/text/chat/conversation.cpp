#include "engine/text/chat/conversation.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"

namespace kalibri::chat {

namespace {

using Kind = Json::Kind;

[[noreturn]] void fail(const std::string& where, const char* what) {
  throw Error(ErrorCode::input, fmt::format("{}: {}", where, what));
}

const Json& expect(const Json* value, Kind kind, const std::string& where, const char* what) {
  if (value == nullptr || !value->is(kind)) fail(where, what);
  return *value;
}

/// Templates tell parts apart by their keys, whatever the type says.
ContentPart read_part(const Json& part) {
  const Json* type = part.find("type");
  const auto has_type = [&](std::string_view name) {
    return type != nullptr && type->is(Kind::string) && type->text == name;
  };
  if (part.find("image") != nullptr || part.find("image_url") != nullptr || has_type("image")) {
    return {ContentPart::Kind::image};
  }
  if (part.find("video") != nullptr || has_type("video")) return {ContentPart::Kind::video};
  const Json* text = part.find("text");
  if (text == nullptr || !text->is(Kind::string)) return {ContentPart::Kind::unknown};
  return {ContentPart::Kind::text, text->text};
}

std::vector<ContentPart> read_content(const Json* content) {
  if (content == nullptr) return {};
  if (content->is(Kind::string)) return {{ContentPart::Kind::text, content->text}};
  if (!content->is(Kind::array)) throw Error(ErrorCode::input, "Unexpected content type.");
  std::vector<ContentPart> parts;
  for (const Json& part : content->items) parts.push_back(read_part(part));
  return parts;
}

std::optional<std::string> read_string(const Json* value) {
  if (value == nullptr || !value->is(Kind::string)) return std::nullopt;
  return value->text;
}

ToolCall read_call(const Json& call, const std::string& where) {
  const Json* function = call.find_value("function");
  const Json& named = function == nullptr ? call : *function;
  const Json* arguments = named.find_value("arguments");
  if (arguments != nullptr && !has_numbers_in_range(*arguments)) fail(where + ".arguments", "a number is out of range");
  return {expect(named.find("name"), Kind::string, where + ".name", "expected a string").text,
          arguments == nullptr ? Json{Kind::object} : *arguments};
}

Message read_message(const Json& json, const std::string& where) {
  Message message{expect(json.find("role"), Kind::string, where + ".role", "expected a string").text};
  message.content = read_content(json.find_value("content"));
  message.reasoning = read_string(json.find("reasoning"));
  message.reasoning_content = read_string(json.find("reasoning_content"));
  if (const Json* calls = json.find_value("tool_calls")) {
    expect(calls, Kind::array, where + ".tool_calls", "expected an array");
    for (std::size_t i = 0; i < calls->items.size(); ++i) {
      message.tool_calls.push_back(read_call(calls->items[i], fmt::format("{}.tool_calls[{}]", where, i)));
    }
  }
  return message;
}

bool is_true(const Json* value) { return value != nullptr && value->is(Kind::boolean) && value->boolean; }

}  // namespace

std::optional<Family> find_family(std::string_view model_type) {
  if (model_type == "kolibri1") return Family::kolibri1;
  if (model_type == "qwen4_exp") return Family::qwen4_exp;
  return std::nullopt;
}

Conversation read_variables(Family family, const Json& variables) {
  Conversation conversation;
  const Json& messages = expect(variables.find("messages"), Kind::array, "messages", "expected an array");
  for (std::size_t i = 0; i < messages.items.size(); ++i) {
    conversation.messages.push_back(read_message(messages.items[i], fmt::format("messages[{}]", i)));
  }
  if (const Json* tools = variables.find_value("tools")) {
    conversation.tools = expect(tools, Kind::array, "tools", "expected an array").items;
    if (!has_numbers_in_range(*tools)) fail("tools", "a number is out of range");
  }
  if (const Json* effort = variables.find("reasoning_effort")) {
    if (effort->is(Kind::string)) {
      conversation.reasoning_effort = effort->text;
    } else if (!effort->is(Kind::null)) {
      fail("reasoning_effort", "expected a string");
    } else if (family == Family::qwen4_exp) {
      conversation.reasoning_effort = "None";  // a given null is a value to this template, and refused by that name
    }
  }
  if (const Json* thinking = variables.find("enable_thinking")) {
    const Thinking otherwise = family == Family::qwen4_exp ? Thinking::undetermined : Thinking::on;
    conversation.thinking = !thinking->is(Kind::boolean) ? otherwise : thinking->boolean ? Thinking::on : Thinking::off;
  }
  if (const Json* preserve = variables.find("preserve_thinking"); preserve != nullptr && preserve->is(Kind::boolean)) {
    conversation.preserve_thinking = preserve->boolean;
  }
  conversation.add_vision_id = is_true(variables.find("add_vision_id"));
  conversation.add_generation_prompt = is_true(variables.find("add_generation_prompt"));
  return conversation;
}

}  // namespace kalibri::chat
