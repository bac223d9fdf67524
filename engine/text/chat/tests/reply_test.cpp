// Replies: the golden cases, in one piece and in every way of cutting them; values and types of Qwen's calls by hand;
// what is hostile.
#include <string>

#include "engine/text/chat/reply_parser.hpp"
#include "engine/text/chat/tests/golden_cases.hpp"
#include "engine/text/chat/tests/parsed_reply.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/generator.hpp"

namespace kalibri::chat {
namespace {

using nlohmann::ordered_json;

ReplyCase reply_case(const GoldenCase& golden) {
  const Json* tools = golden.input.find_value("tools");
  const bool is_hermes = golden.expected.at("format") == "hermes";
  const bool is_open = golden.expected.at("think_open_in_prompt");
  return {is_hermes ? ReplyFormat::hermes : ReplyFormat::qwen_xml,
          is_open ? ReplyStart::reasoning : ReplyStart::anywhere,
          tools == nullptr ? std::vector<Json>{} : tools->items};
}

/// As the golden data write a message.
ordered_json message_of(const ParsedReply& reply) {
  ordered_json message;
  message["reasoning"] = reply.reasoning.empty() ? ordered_json() : ordered_json(reply.reasoning);
  const bool has_other = !reply.reasoning.empty() || !reply.tool_calls.empty();
  message["content"] = reply.content.empty() && has_other ? ordered_json() : ordered_json(reply.content);
  message["tool_calls"] = ordered_json::array();
  for (const ParsedCall& call : reply.tool_calls) {
    message["tool_calls"].push_back({{"name", call.name}, {"arguments", ordered_json::parse(call.arguments)}});
  }
  return message;
}

TEST_CASE("every golden reply becomes its message") {
  const auto cases = golden_cases("parse_cases");
  if (cases.empty()) KALIBRI_SKIP("no golden data of chat");
  CHECK(cases.size() == 28 + 35);
  for (const GoldenCase& golden : cases) {
    INFO(golden.name);
    const std::string text = golden.expected.at("text");
    CHECK(message_of(parse_reply(reply_case(golden), {text})).dump() == golden.expected.at("expect").dump());
  }
}

TEST_CASE("the deltas of every golden reply sum up to its message however it is cut") {
  const auto cases = golden_cases("parse_cases");
  if (cases.empty()) KALIBRI_SKIP("no golden data of chat");
  for (const GoldenCase& golden : cases) {
    INFO(golden.name);
    const std::string text = golden.expected.at("text");
    const ReplyCase reply = reply_case(golden);
    const ParsedReply whole = parse_reply(reply, {text});
    for (std::size_t size = 1; size < 20; ++size) REQUIRE(parse_reply(reply, pieces_of(text, size)) == whole);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      REQUIRE(parse_reply(reply, {text.substr(0, cut), text.substr(cut)}) == whole);
    }
    for (std::uint64_t seed = 0; seed < 200; ++seed) REQUIRE(parse_reply(reply, random_pieces(text, seed)) == whole);
  }
}

const ReplyCase kHermes{ReplyFormat::hermes, ReplyStart::anywhere, {Json{Json::Kind::object}}};

Json tool(const std::string& properties, const std::string& more = "") {
  return parse_json(
             R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {)" +
             properties + "}" + more + "}}}")
      .value();
}

/// The arguments of a call of f with one value for p.
std::string typed(const Json& f, const std::string& value) {
  const ReplyCase reply{ReplyFormat::qwen_xml, ReplyStart::anywhere, {f}};
  const ParsedReply parsed = parse_reply(
      reply, {"<tool_call>\n<function=f>\n<parameter=p>\n" + value + "\n</parameter>\n</function>\n</tool_call>"});
  REQUIRE(parsed.tool_calls.size() == 1);
  CHECK(parsed.content.empty());
  return parsed.tool_calls[0].arguments;
}

TEST_CASE("a value that does not fit its declared type stays a string and the call is kept") {
  const auto [schema, value, expected] = GENERATE(table<std::string, std::string, std::string>({
      {R"({"type": "integer"})", "2026-01-15", R"("2026-01-15")"},
      {R"({"type": "integer"})", "007", R"("007")"},
      {R"({"type": "integer"})", "-7.00", "-7"},
      {R"({"type": "integer"})", "123456789012345678901234567890", "123456789012345678901234567890"},
      {R"({"type": "number"})", "1e999", R"("1e999")"},
      {R"({"type": "number"})", "-2.50e3", "-2.50e3"},
      {R"({"type": "boolean"})", "Yes", R"("Yes")"},
      {R"({"type": "boolean"})", "FALSE", "false"},
      {R"({"type": "object"})", R"({"a": 1,})", R"("{\"a\": 1,}")"},
      {R"({"type": "object"})", "[1]", R"("[1]")"},
      {R"({"type": "array"})", " [1, {\"a\": 2}] ", R"([1, {"a": 2}])"},
      {R"({"type": "string"})", "null", R"("null")"},
      {R"({"type": ["string", "null"]})", "None", "null"},
      {R"({"type": "integer"})", "None", "null"},
      {R"({"oneOf": [{"type": "boolean"}, {"type": "string"}]})", "TRUE", "true"},
      {R"({"allOf": [{"type": "integer"}]})", "3", "3"},
      {R"({"allOf": [{"type": "integer"}, {"minimum": 1}]})", "3", R"("3")"},
      {R"({"enum": ["none", "all"]})", "none", R"("none")"},
      {R"({"enum": [3, null]})", "null", "null"},
      {R"({"enum": [3]})", "3.0", "3.0"},
      {R"({"$ref": "#/$defs/a~1b"})", "3", "3"},
      {R"({"$ref": "#/$defs/loop"})", "3", R"("3")"},
      {R"({"$ref": "http://127.0.0.1/"})", "3", R"("3")"},
      {R"({"anyOf": [{"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/tree"}]})", "3", R"("3")"},
      {R"({"type": 7})", "3", R"("3")"},
      {R"(true)", "3", R"("3")"},
  }));
  CAPTURE(schema, value);
  const Json f = tool("\"p\": " + schema,
                      R"(, "$defs": {"a/b": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"},
                                     "tree": {"anyOf": [{"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/tree"}]}})");
  CHECK(typed(f, value) == "{\"p\": " + expected + "}");
}

TEST_CASE("one line break on either side frames a value and the others are its own") {
  CHECK(typed(tool(""), "a\n\nb\n") == R"({"p": "a\n\nb\n"})");
  CHECK(typed(tool(""), "") == R"({"p": ""})");
  CHECK(typed(tool(""), "\r") == R"({"p": ""})");
}

TEST_CASE("a parameter without a close tag ends where a declared one begins") {
  const Json f = tool(R"("p": {"type": "integer"}, "q": {"type": "integer"})");
  CHECK(typed(f, "1\n<parameter=q>\n2") == R"({"p": 1, "q": 2})");
  CHECK(typed(f, "1\n<parameter=x>\n2") == R"({"p": "1\n<parameter=x>\n2"})");  // x is none of f's
  CHECK(typed(f, "1\n<parameter=p>\n2") == R"({"p": "1\n<parameter=p>\n2"})");  // nor a second p
}

TEST_CASE("a repeated parameter keeps its first place and takes its last value") {
  CHECK(typed(tool(""), "1\n</parameter>\n<parameter=q>\n2\n</parameter>\n<parameter=p>\n3") ==
        R"({"p": "3", "q": "2"})");
}

TEST_CASE("a Hermes call survives braces and close tags in its strings") {
  for (const std::string command :
       {"mkdir -p test/{test1,test2", "a</tool_call>b", "<tool_call></tool_call>", "\\\"}"}) {
    CAPTURE(command);
    const std::string body = R"({"name": "sh", "arguments": {"command": )" + json_quoted(command) + "}}";
    for (const auto& pieces : {pieces_of("<tool_call>\n" + body + "\n</tool_call>", 1000),
                               pieces_of("<tool_call>\n" + body + "\n</tool_call>", 1)}) {
      const ParsedReply reply = parse_reply(kHermes, pieces);
      REQUIRE(reply.tool_calls.size() == 1);
      CHECK(ordered_json::parse(reply.tool_calls[0].arguments).at("command") == command);
      CHECK(reply.content.empty());
    }
  }
}

TEST_CASE("Hermes arguments keep the spelling of their numbers") {
  const ParsedReply reply =
      parse_reply(kHermes, {R"(<tool_call>{"name": "f", "arguments": {"x":1.50,  "y":1E2}}</tool_call>)"});
  REQUIRE(reply.tool_calls.size() == 1);
  CHECK(reply.tool_calls[0].arguments == R"({"x":1.50,  "y":1E2})");
}

TEST_CASE("a malformed call is content and what follows it is read again") {
  for (const std::string broken :
       {"", "null", "[]", R"({"name": ""})", R"({"name": 3})", R"({"arguments": {}})",
        R"({"name": "f", "arguments": []})", R"({"name": "f", "arguments": "[1]"})",
        R"({"name": "f", "arguments": "x"})", R"({"name": "f"} x)", R"({"name": "f\ud800"})", "{\"name\": \"f\n\"}"}) {
    CAPTURE(broken);
    const std::string text = "<tool_call>" + broken + "</tool_call>";
    const ParsedReply reply = parse_reply(kHermes, {text + R"(<tool_call>{"name": "g"}</tool_call>)"});
    CHECK(reply.content == text);
    REQUIRE(reply.tool_calls.size() == 1);
    CHECK(reply.tool_calls[0].name == "g");
  }
}

TEST_CASE("whitespace is removed around calls and after reasoning and nowhere else") {
  const std::string call = R"(<tool_call>{"name": "f"}</tool_call>)";
  const auto [text, content] = GENERATE_COPY(table<std::string, std::string>({
      {" \n a \n ", " \n a \n "},
      {" \n ", " \n "},
      {" \n" + call, ""},
      {" \n a\n" + call + "\n b \n", " \n a\n b"},
      {call + "\n\n b " + call + " ", "b"},
      {"<think>r</think>\n\n a \n", "a \n"},
      {"<think>r</think> \n", ""},
      {"<think>r" + call + "\n b", "b"},
      {"a \n<tool_call>x</tool_call> ", "a \n<tool_call>x</tool_call> "},
  }));
  CAPTURE(text);
  CHECK(parse_reply(kHermes, {text}).content == content);
  CHECK(parse_reply(kHermes, pieces_of(text, 1)).content == content);
}

TEST_CASE("without tools a call is plain text also inside reasoning") {
  ReplyCase reply = kHermes;
  reply.tools.clear();
  const std::string call = R"(<tool_call>{"name": "f"}</tool_call>)";
  CHECK(parse_reply(reply, {call}).content == call);
  CHECK(parse_reply(reply, {"<think>a " + call + " b</think>c"}).reasoning == "a " + call + " b");
}

TEST_CASE("a continued answer has no reasoning") {
  ReplyCase reply = kHermes;
  reply.start = ReplyStart::content;
  CHECK(parse_reply(reply, {"<think>a</think>"}).content == "<think>a</think>");
}

TEST_CASE("text goes out as soon as it cannot be part of a marker") {
  ReplyParser parser(ReplyFormat::hermes, ReplyStart::anywhere, {Json{Json::Kind::object}});
  CHECK(parser.feed(" <thi").reasoning.empty());
  CHECK(parser.feed("nk> a").reasoning == "a");
  CHECK(parser.feed(" </thin").reasoning.empty());
  CHECK(parser.feed("g").reasoning == " </thing");
  CHECK(parser.feed("</think>\n\nb <tool").content == "b");
  CHECK(parser.feed("box>").content == " <toolbox>");
  CHECK(parser.feed("\n<tool_call>{").content.empty());
  CHECK(parser.feed(R"("name": "f"}</tool_call)").tool_calls.empty());
  CHECK(parser.feed(">").tool_calls.size() == 1);
  CHECK(parser.finish().content.empty());
}

TEST_CASE("hostile replies of a megabyte cost no more than reading them") {
  const auto [unit, is_hermes] = GENERATE(table<std::string, bool>({
      {"<tool_call>", true},
      {"<tool_call>{\"a\":\"</tool_call>", true},
      {"<tool_call>{\"\\\"</tool_call>", true},
      {"<tool_call>{\"</tool_call>\"", true},
      {"<tool_call>\\\"</tool_call>", true},
      {"<tool_call>[", true},
      {"</tool_call>", true},
      {" ", true},
      {"<think>", true},
      {"<", true},
      {"{\"a\":", true},
      {"<tool_call><function=f><parameter=p>x</tool_call>", false},
      {"</function></tool_call>", false},
      {"<parameter=p>\n", false},
      {"\n<parameter=p>", false},
      {"</parameter> \n", false},
      {"</parameter></function>", false},
      {"<parameter=p>\n</tool_call></parameter>", false},
  }));
  CAPTURE(unit);
  std::string text = is_hermes ? "<tool_call>{\"a\": \"" : "<tool_call><function=f><parameter=p>";
  if (unit == " " || unit.starts_with("<t")) text.clear();
  while (text.size() < 1 << 20) text += unit;
  const ReplyCase reply{is_hermes ? ReplyFormat::hermes : ReplyFormat::qwen_xml, ReplyStart::anywhere, {tool("")}};
  const ParsedReply whole = parse_reply(reply, {text});
  CHECK(parse_reply(reply, pieces_of(text, 7)) == whole);
}

}  // namespace
}  // namespace kalibri::chat
