// The two chat filters: every golden case as a line, and lines that cannot be answered.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.hpp"
#include "engine/cli/parse_reply_command.hpp"
#include "engine/cli/render_chat_command.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"

namespace kalibri::cli {
namespace {

using nlohmann::ordered_json;

ordered_json golden(const std::string& file) {
  const auto set = fixtures::find_golden("chat");
  if (!set) return nullptr;
  std::ifstream stream(*set / file);
  return ordered_json::parse(stream);
}

std::string render(const std::string& model_type, const std::string& lines) {
  std::istringstream in(lines);
  std::ostringstream out, notes;
  CHECK(render_chat_command({model_type, true}, in, out, notes) == 0);
  return out.str();
}

std::string parse(const std::string& lines) {
  std::istringstream in(lines);
  std::ostringstream out;
  CHECK(parse_reply_command({true}, in, out) == 0);
  return out.str();
}

TEST_CASE("render-chat answers every golden case") {
  for (const auto& [file, model_type] : {std::pair{"kolibri1.json", "kolibri1"}, {"qwen38.json", "qwen4_exp"}}) {
    const ordered_json data = golden(file);
    if (data.is_null()) KALIBRI_SKIP("no golden data of chat");
    for (const auto& [group, input] : {std::pair{"template_cases", "vars"}, {"request_cases", "request"}}) {
      for (const ordered_json& single : data.at(group)) {
        INFO(single.at("name"));
        if (single.at("name") == "args_all_types" || single.at("name") == "args_key_order_and_floats") {
          continue;  // nlohmann's text spells numbers otherwise; chat_test has these cases
        }
        ordered_json expected = single;
        expected.erase("name");
        expected.erase(input);
        const std::string answer = render(model_type, ordered_json({{input, single.at(input)}}).dump() + "\n");
        CHECK(ordered_json::parse(answer) == expected);
      }
    }
  }
}

TEST_CASE("parse-reply answers every golden case in whatever chunks") {
  for (const char* file : {"kolibri1.json", "qwen38.json"}) {
    const ordered_json data = golden(file);
    if (data.is_null()) KALIBRI_SKIP("no golden data of chat");
    for (const ordered_json& single : data.at("parse_cases")) {
      INFO(single.at("name"));
      const std::string text = single.at("text");
      for (const ordered_json& chunks :
           {ordered_json(), ordered_json(1), ordered_json({3, 0, 1, 1000}), ordered_json({text})}) {
        ordered_json line = single;
        if (!chunks.is_null()) line["chunks"] = chunks;
        CHECK(ordered_json::parse(parse(line.dump() + "\n")) == single.at("expect"));
      }
    }
  }
}

TEST_CASE("a call's arguments stay in their line and keep their numbers") {
  const std::string answer = parse(
      R"({"format": "hermes", "think_open_in_prompt": false, "tools": [{}], "text": "<tool_call>{\"name\": \"f\", \"arguments\": {\n\"a\": 1.50}}</tool_call>"})");
  CHECK(answer == R"({"reasoning": null, "content": null, "tool_calls": [{"name": "f", "arguments": { "a": 1.50}}]})"
                  "\n");
}

TEST_CASE("an answer holds nothing that a program could take for the end of its line") {
  const std::string answer = parse(R"({"format": "hermes", "tools": null, "text": "a\u2028b\u0085c\u2029\n"})"
                                   "\n");
  CHECK(answer == R"({"reasoning": null, "content": "a\u2028b\u0085c\u2029\n", "tool_calls": []})"
                  "\n");
}

TEST_CASE("answers come line for line and one that cannot be answered stops the filter with its number") {
  const std::string good = R"({"format": "hermes", "tools": null, "text": "a"})";
  const std::string answered = R"({"reasoning": null, "content": "a", "tool_calls": []})";
  CHECK(parse(good + "\n" + good) == answered + "\n" + answered + "\n");
  for (const std::string bad :
       {"", "{", "[]", R"({"text": "a"})", R"({"format": "hermes"})", R"({"format": "xml", "text": "a"})",
        R"({"format": "hermes", "text": "a", "tools": {}})", R"({"format": "hermes", "text": "a", "chunks": ["b"]})",
        R"({"format": "hermes", "text": "a", "chunks": 0})", R"({"format": "hermes", "text": "a", "chunks": [-1]})",
        R"({"format": "hermes", "text": "a", "chunks": [1.5]})", R"({"format": "hermes", "text": "a", "chunks": "a"})",
        R"({"format": "hermes", "text": "a", "think_open_in_prompt": 1})",
        "{\"format\": \"hermes\", \"text\": \"\xFF\"}"}) {
    CAPTURE(bad);
    std::istringstream in(good + "\n" + bad + "\n");
    std::ostringstream out;
    CHECK_THROWS_WITH(parse_reply_command({true}, in, out),
                      Catch::Matchers::ContainsSubstring("standard input, line 2: "));
    CHECK(out.str() == answered + "\n");
  }
}

TEST_CASE("render-chat refuses what it cannot answer") {
  for (const std::string bad : {"{}", "[]", "7", R"({"vars": 1})", R"({"vars": {}, "request": {}})"}) {
    CAPTURE(bad);
    std::istringstream in(bad);
    std::ostringstream out, notes;
    CHECK_THROWS_WITH(render_chat_command({"kolibri1", true}, in, out, notes),
                      Catch::Matchers::ContainsSubstring("standard input, line 1: "));
  }
  std::istringstream in;
  std::ostringstream out, notes;
  CHECK_THROWS_AS(render_chat_command({"llama", true}, in, out, notes), Error);
  CHECK_THROWS_AS(render_chat_command({"kolibri1", false}, in, out, notes), Error);
  CHECK_THROWS_AS(parse_reply_command({false}, in, out), Error);
}

TEST_CASE("render-chat says why a request is refused") {
  std::istringstream in(R"({"request": {"messages": [{"role": "user", "content": 7}]}})");
  std::ostringstream out, notes;
  render_chat_command({"qwen4_exp", true}, in, out, notes);
  CHECK(out.str() == "{\"error_param\": \"messages[0].content\"}\n");
  CHECK(notes.str() == "kalibri: messages[0].content: expected a string or an array of parts\n");
}

}  // namespace
}  // namespace kalibri::cli
