#include "engine/text/chat/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/text/chat/render.hpp"
#include "engine/text/chat/strip.hpp"

namespace kalibri::chat {

namespace {

using Kind = Json::Kind;

constexpr std::size_t kMaxMessages = 8192;
constexpr std::size_t kMaxTools = 128;
constexpr std::size_t kMaxToolName = 128;

[[noreturn]] void refuse(const std::string& param, const std::string& text) { throw RequestError(param, text); }

const Json& expect(const Json* value, Kind kind, const std::string& param, const char* text) {
  if (value == nullptr || !value->is(kind)) refuse(param, text);
  return *value;
}

std::optional<bool> read_bool(const Json& object, std::string_view key, const std::string& prefix = "") {
  const Json* value = object.find_value(key);
  if (value == nullptr) return std::nullopt;
  return expect(value, Kind::boolean, prefix + std::string(key), "expected true or false").boolean;
}

std::string at(std::string_view list, std::size_t index) { return fmt::format("{}[{}]", list, index); }

bool takes_images(Family family, std::string_view role) {
  return family == Family::qwen4_exp && (role == "user" || role == "tool");
}

ContentPart read_part(Family family, std::string_view role, const Json& part, const std::string& where) {
  expect(&part, Kind::object, where, "expected an object");
  const std::string& type = expect(part.find("type"), Kind::string, where + ".type", "expected a string").text;
  if (type == "text") {
    return {ContentPart::Kind::text,
            expect(part.find("text"), Kind::string, where + ".text", "expected a string").text};
  }
  if (type != "image_url" || !takes_images(family, role)) {
    refuse(where + ".type", fmt::format("'{}' is no part that this model reads here", type));
  }
  const Json* image = part.find("image_url");
  const Json* url = image == nullptr ? nullptr : image->find("url");
  if (url == nullptr || !url->is(Kind::string) || !url->text.starts_with("data:image/")) {
    refuse(where + ".image_url", "expected {\"url\": \"data:image/...\"}; nothing is fetched from elsewhere");
  }
  return {ContentPart::Kind::image, url->text};
}

std::vector<ContentPart> read_content(Family family, std::string_view role, const Json* content,
                                      const std::string& where) {
  if (content == nullptr) return {};
  if (content->is(Kind::string)) return {{ContentPart::Kind::text, content->text}};
  expect(content, Kind::array, where, "expected a string or an array of parts");
  std::vector<ContentPart> parts;
  for (std::size_t i = 0; i < content->items.size(); ++i) {
    parts.push_back(read_part(family, role, content->items[i], at(where, i)));
  }
  return parts;
}

Json read_arguments(const Json* arguments, const std::string& where) {
  const bool is_blank = arguments != nullptr && arguments->is(Kind::string) && strip(arguments->text).empty();
  if (arguments == nullptr || is_blank) return {Kind::object};
  std::string error = "expected a JSON object";
  std::optional<Json> value = *arguments;
  if (arguments->is(Kind::string)) value = parse_json(arguments->text, &error);
  if (!value || !value->is(Kind::object)) refuse(where, error);
  if (!has_numbers_in_range(*value)) refuse(where, "a number is out of range");
  return *value;
}

std::vector<ToolCall> read_calls(const Json* calls, const std::string& where) {
  std::vector<ToolCall> read;
  if (calls == nullptr) return read;
  expect(calls, Kind::array, where, "expected an array");
  for (std::size_t i = 0; i < calls->items.size(); ++i) {
    const std::string call = at(where, i), function = call + ".function";
    expect(&calls->items[i], Kind::object, call, "expected an object");
    const Json& named = expect(calls->items[i].find("function"), Kind::object, function, "expected an object");
    read.push_back({expect(named.find("name"), Kind::string, function + ".name", "expected a string").text,
                    read_arguments(named.find_value("arguments"), function + ".arguments")});
  }
  return read;
}

std::optional<std::string> read_reasoning(const Json& message, const std::string& where) {
  for (const char* key : {"reasoning", "reasoning_content"}) {
    if (const Json* value = message.find_value(key)) {
      return expect(value, Kind::string, where + '.' + key, "expected a string").text;
    }
  }
  return std::nullopt;
}

Message read_message(Family family, const Json& json, const Message* previous, const std::string& where) {
  expect(&json, Kind::object, where, "expected an object");
  const std::string role_param = where + ".role";
  std::string role = expect(json.find("role"), Kind::string, role_param, "expected a string").text;
  if (role == "developer") role = "system";
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  if (std::ranges::find(kRoles, role) == kRoles.end()) refuse(role_param, fmt::format("unknown role '{}'", role));
  if (role == "tool" && (previous == nullptr || (previous->role != "assistant" && previous->role != "tool"))) {
    refuse(role_param, "a tool message follows an assistant or a tool message");
  }
  if (role == "system" && previous != nullptr && family == Family::qwen4_exp) {
    refuse(role_param, "this model takes a system message at the beginning only");
  }
  Message message{role, read_content(family, role, json.find_value("content"), where + ".content")};
  if (role == "assistant") {
    message.reasoning = message.reasoning_content = read_reasoning(json, where);
    message.tool_calls = read_calls(json.find_value("tool_calls"), where + ".tool_calls");
  }
  return message;
}

std::vector<Message> read_messages(Family family, const Json& body) {
  const Json& list = expect(body.find("messages"), Kind::array, "messages", "expected an array of messages");
  if (list.items.empty()) refuse("messages", "expected at least one message");
  if (list.items.size() > kMaxMessages) refuse("messages", fmt::format("more than {}", kMaxMessages));
  std::vector<Message> messages;
  messages.reserve(list.items.size());
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const Message* previous = i == 0 ? nullptr : &messages.back();
    messages.push_back(read_message(family, list.items[i], previous, at("messages", i)));
  }
  return messages;
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolName && std::ranges::all_of(name, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
}

void check_tool(const Json& tool, const std::string& where) {
  expect(&tool, Kind::object, where, "expected an object");
  if (expect(tool.find("type"), Kind::string, where + ".type", "expected \"function\"").text != "function") {
    refuse(where + ".type", "expected \"function\"");
  }
  const std::string name = where + ".function.name";
  const Json& function = expect(tool.find("function"), Kind::object, where + ".function", "expected an object");
  if (!is_tool_name(expect(function.find("name"), Kind::string, name, "expected a string").text)) {
    refuse(name, fmt::format("expected 1 to {} of A-Z a-z 0-9 _ - .", kMaxToolName));
  }
  if (const Json* parameters = function.find_value("parameters")) {
    expect(parameters, Kind::object, where + ".function.parameters", "expected a JSON schema");
  }
}

std::vector<Json> read_tools(const Json& body) {
  std::vector<Json> tools;
  if (const Json* list = body.find_value("tools")) {
    tools = expect(list, Kind::array, "tools", "expected an array").items;
    if (tools.size() > kMaxTools) refuse("tools", fmt::format("more than {}", kMaxTools));
    for (std::size_t i = 0; i < tools.size(); ++i) check_tool(tools[i], at("tools", i));
    if (!has_numbers_in_range(*list)) refuse("tools", "a number is out of range");
  }
  if (const Json* choice = body.find_value("tool_choice")) {
    const bool is_none = choice->is(Kind::string) && choice->text == "none";
    if (!is_none && !(choice->is(Kind::string) && choice->text == "auto")) {
      refuse("tool_choice", "expected \"auto\" or \"none\": a call cannot be forced");
    }
    if (is_none) tools.clear();
  }
  return tools;
}

std::optional<std::string> read_effort(const Json& object) {
  const Json* value = object.find_value("reasoning_effort");
  if (value == nullptr) return std::nullopt;
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (!value->is(Kind::string) || std::ranges::find(kEfforts, value->text) == kEfforts.end()) {
    refuse("reasoning_effort", fmt::format("expected one of {}", fmt::join(kEfforts, ", ")));
  }
  return value->text;
}

void read_switches(Family family, const Json& body, Conversation& conversation) {
  static const Json kNothing{Kind::object};
  const Json* given = body.find_value("chat_template_kwargs");
  const std::string prefix = "chat_template_kwargs";
  const Json& kwargs = given == nullptr ? kNothing : expect(given, Kind::object, prefix, "expected an object");
  constexpr std::array<std::string_view, 4> kKnown = {"reasoning_effort", "enable_thinking", "preserve_thinking",
                                                      "add_vision_id"};
  for (const std::string& key : kwargs.keys) {
    if (std::ranges::find(kKnown, key) == kKnown.end()) {
      refuse(prefix + '.' + key, fmt::format("expected one of {}", fmt::join(kKnown, ", ")));
    }
  }
  std::optional<std::string> effort = read_effort(kwargs);
  if (const auto top_level = read_effort(body)) effort = top_level;
  conversation.thinking =
      read_bool(kwargs, "enable_thinking", prefix + '.').value_or(true) ? Thinking::on : Thinking::off;
  conversation.preserve_thinking = read_bool(kwargs, "preserve_thinking", prefix + '.');
  conversation.add_vision_id = read_bool(kwargs, "add_vision_id", prefix + '.').value_or(false);
  if (family == Family::qwen4_exp && effort) {  // its template knows xhigh, medium and low only
    if (*effort == "none") {
      conversation.thinking = Thinking::off;
      effort.reset();
    } else if (*effort != "medium") {
      effort = *effort == "minimal" || *effort == "low" ? "low" : "xhigh";
    }
  }
  conversation.reasoning_effort = effort;
}

}  // namespace

ChatRequest read_request(Family family, const Json& body) {
  ChatRequest request;
  Conversation& conversation = request.conversation;
  conversation.messages = read_messages(family, body);
  conversation.tools = read_tools(body);
  read_switches(family, body, conversation);
  request.continue_final_message = read_bool(body, "continue_final_message").value_or(false);
  const bool add_generation_prompt = read_bool(body, "add_generation_prompt").value_or(true);
  conversation.add_generation_prompt = add_generation_prompt && !request.continue_final_message;
  const Message& last = conversation.messages.back();
  if (request.continue_final_message && (last.role != "assistant" || !last.tool_calls.empty())) {
    refuse("continue_final_message", "the last message is no assistant message without tool calls");
  }
  return request;
}

Prompt build_prompt(Family family, const ChatRequest& request) {
  Prompt prompt;
  try {
    prompt.text = render(family, request.conversation);
  } catch (const Error& error) {
    throw RequestError("messages", error.what());
  }
  if (request.continue_final_message) {
    prompt.text.resize(prompt.text.size() - std::string_view("<|im_end|>\n").size());
    prompt.start = ReplyStart::content;
  } else if (family == Family::qwen4_exp && request.conversation.thinking != Thinking::off) {
    prompt.start = ReplyStart::reasoning;
  }
  return prompt;
}

}  // namespace kalibri::chat
