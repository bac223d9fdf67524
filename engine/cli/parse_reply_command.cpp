#include "engine/cli/parse_reply_command.hpp"

#include <fmt/format.h>

#include <charconv>
#include <ostream>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/cli/jsonl_filter.hpp"
#include "engine/text/chat/json.hpp"
#include "engine/text/chat/reply_parser.hpp"

namespace kalibri::cli {

namespace {

using chat::Json;
using Kind = Json::Kind;

/// A line that cannot be answered.
[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::input, what); }

chat::ReplyFormat read_format(const Json& line) {
  const Json* format = line.find("format");
  if (format != nullptr && format->is(Kind::string)) {
    if (format->text == "hermes") return chat::ReplyFormat::hermes;
    if (format->text == "qwen_xml") return chat::ReplyFormat::qwen_xml;
  }
  refuse(R"(format: expected "hermes" or "qwen_xml")");
}

chat::ReplyStart read_start(const Json& line) {
  const Json* is_open = line.find_value("think_open_in_prompt");
  if (is_open == nullptr) return chat::ReplyStart::anywhere;
  if (!is_open->is(Kind::boolean)) refuse("think_open_in_prompt: expected true or false");
  return is_open->boolean ? chat::ReplyStart::reasoning : chat::ReplyStart::anywhere;
}

std::vector<Json> read_tools(const Json& line) {
  const Json* tools = line.find_value("tools");
  if (tools == nullptr) return {};
  if (!tools->is(Kind::array)) refuse("tools: expected an array or null");
  return tools->items;
}

std::size_t read_length(const Json& number) {
  std::size_t length = 0;
  const char* end = number.text.data() + number.text.size();
  const auto result = std::from_chars(number.text.data(), end, length);
  if (!number.is(Kind::number) || result.ec != std::errc() || result.ptr != end) {
    refuse("chunks: expected texts, lengths in characters, or one length");
  }
  return length;
}

/// Takes `n` characters off the front of `text`, or all that it has.
std::string take_characters(std::string_view& text, std::size_t n) {
  const auto is_lead = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  std::size_t end = 0;
  while (end < text.size() && (n > 0 || !is_lead(text[end]))) n -= is_lead(text[end++]) ? 1U : 0U;
  std::string taken(text.substr(0, end));
  text.remove_prefix(end);
  return taken;
}

std::vector<std::string> read_pieces(const Json& line) {
  const Json* given = line.find("text");
  if (given == nullptr || !given->is(Kind::string)) refuse("text: expected a string");
  const Json* chunks = line.find_value("chunks");
  std::string_view text = given->text;
  if (chunks == nullptr) return {given->text};
  std::vector<std::string> pieces;
  if (!chunks->is(Kind::array)) {
    const std::size_t length = read_length(*chunks);
    if (length == 0) refuse("chunks: expected a length of at least 1");
    while (!text.empty()) pieces.push_back(take_characters(text, length));
    return pieces;
  }
  const bool are_texts = !chunks->items.empty() && chunks->items.front().is(Kind::string);
  std::string joined;
  for (const Json& chunk : chunks->items) {
    if (are_texts && !chunk.is(Kind::string)) refuse("chunks: expected texts only");
    pieces.push_back(are_texts ? chunk.text : take_characters(text, read_length(chunk)));
    if (are_texts) joined += chunk.text;
  }
  if (are_texts && joined != text) refuse("chunks: together they are not the text");
  if (!are_texts) pieces.emplace_back(text);
  return pieces;
}

std::string answer(const std::string& text) {
  std::string wrong;
  const auto line = chat::parse_json(text, &wrong, chat::kMaxJsonDepth + 1);
  if (!line) refuse("no valid JSON: " + wrong);
  if (!line->is(Kind::object)) refuse("expected an object");
  chat::ReplyParser parser(read_format(*line), read_start(*line), read_tools(*line));
  std::string reasoning, content, calls;
  const auto add = [&](const chat::ReplyDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const chat::ParsedCall& call : delta.tool_calls) {
      calls += fmt::format("{}{{\"name\": {}, \"arguments\": {}}}", calls.empty() ? "" : ", ",
                           chat::json_quoted(call.name), call.arguments);
    }
  };
  for (const std::string& piece : read_pieces(*line)) add(parser.feed(piece));
  add(parser.finish());
  const bool has_content = !content.empty() || (reasoning.empty() && calls.empty());
  return fmt::format("{{\"reasoning\": {}, \"content\": {}, \"tool_calls\": [{}]}}",
                     reasoning.empty() ? "null" : chat::json_quoted(reasoning),
                     has_content ? chat::json_quoted(content) : "null", calls);
}

}  // namespace

int parse_reply_command(const ParseReplyOptions& options, std::istream& in, std::ostream& out) {
  if (!options.jsonl) throw Error(ErrorCode::usage, "parse-reply: expected --jsonl and lines on standard input");
  answer_lines(in, out, answer);
  return 0;
}

}  // namespace kalibri::cli
