// Requests: what is refused and by which name, what the switches become, and where a reply starts.
#include "engine/text/chat/request.hpp"

#include <string>

#include "fixtures/catch.hpp"

namespace kalibri::chat {
namespace {

Json body(const std::string& members, const std::string& messages = R"([{"role": "user", "content": "a"}])") {
  return parse_json("{\"messages\": " + messages + (members.empty() ? "" : ", " + members) + "}").value();
}

std::string refused_param(Family family, const Json& request) {
  try {
    build_prompt(family, read_request(family, request));
  } catch (const RequestError& error) {
    return error.param();
  }
  return "accepted";
}

TEST_CASE("a wrong member is refused by its path") {
  const auto [members, param] = GENERATE(table<std::string, std::string>({
      {R"("tools": {})", "tools"},
      {R"("tools": [1])", "tools[0]"},
      {R"("tools": [{"function": {"name": "f"}}])", "tools[0].type"},
      {R"("tools": [{"type": "retrieval"}])", "tools[0].type"},
      {R"("tools": [{"type": "function"}])", "tools[0].function"},
      {R"("tools": [{"type": "function", "function": {"name": "a b"}}])", "tools[0].function.name"},
      {R"("tools": [{"type": "function", "function": {"name": ""}}])", "tools[0].function.name"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])",
       "tools[0].function.parameters"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "x": 1e999}}])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("chat_template_kwargs": {"thinking": true})", "chat_template_kwargs.thinking"},
      {R"("chat_template_kwargs": {"preserve_thinking": 1})", "chat_template_kwargs.preserve_thinking"},
      {R"("chat_template_kwargs": {"add_vision_id": "x"})", "chat_template_kwargs.add_vision_id"},
      {R"("reasoning_effort": 3)", "reasoning_effort"},
      {R"("continue_final_message": true)", "continue_final_message"},
      {R"("continue_final_message": "x")", "continue_final_message"},
      {R"("add_generation_prompt": 0)", "add_generation_prompt"},
      {R"("tools": null, "tool_choice": null, "chat_template_kwargs": null, "reasoning_effort": null)", "accepted"},
  }));
  CAPTURE(members);
  CHECK(refused_param(Family::kolibri1, body(members)) == param);
  CHECK(refused_param(Family::qwen4_exp, body(members)) == param);
}

TEST_CASE("a wrong message is refused by its path") {
  const auto [messages, param] = GENERATE(table<std::string, std::string>({
      {"7", "messages"},
      {"[]", "messages"},
      {"[7]", "messages[0]"},
      {R"([{"content": "a"}])", "messages[0].role"},
      {R"([{"role": "tool", "content": "a"}])", "messages[0].role"},
      {R"([{"role": "user"}, {"role": "tool"}])", "messages[1].role"},
      {R"([{"role": "user", "content": {}}])", "messages[0].content"},
      {R"([{"role": "user", "content": ["a"]}])", "messages[0].content[0]"},
      {R"([{"role": "user", "content": [{"text": "a"}]}])", "messages[0].content[0].type"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text"},
      {R"([{"role": "user", "content": [{"type": "input_audio"}]}])", "messages[0].content[0].type"},
      {R"([{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role": "user"}, {"role": "assistant", "reasoning": 1}])", "messages[1].reasoning"},
      {R"([{"role": "user"}, {"role": "assistant", "reasoning": null, "reasoning_content": []}])",
       "messages[1].reasoning_content"},
      {R"([{"role": "user"}, {"role": "assistant", "tool_calls": {}}])", "messages[1].tool_calls"},
      {R"([{"role": "user"}, {"role": "assistant", "tool_calls": [1]}])", "messages[1].tool_calls[0]"},
      {R"([{"role": "user"}, {"role": "assistant", "tool_calls": [{}]}])", "messages[1].tool_calls[0].function"},
      {R"([{"role": "user"}, {"role": "assistant", "tool_calls": [{"function": {}}]}])",
       "messages[1].tool_calls[0].function.name"},
      {R"([{"role": "user"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}])",
       "messages[1].tool_calls[0].function.arguments"},
      {R"([{"role": "user"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\":1e999}"}}]}])",
       "messages[1].tool_calls[0].function.arguments"},
      {R"([{"role": "user"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": " \n"}}]}])",
       "accepted"},
  }));
  CAPTURE(messages);
  CHECK(refused_param(Family::kolibri1, body("", messages)) == param);
  CHECK(refused_param(Family::qwen4_exp, body("", messages)) == param);
}

TEST_CASE("Qwen needs a question and Kolibri does not") {
  const Json only_system = body("", R"([{"role": "system", "content": "a"}])");
  CHECK(refused_param(Family::qwen4_exp, only_system) == "messages");
  CHECK(refused_param(Family::kolibri1, only_system) == "accepted");
}

TEST_CASE("Qwen takes only images that the request itself carries") {
  const auto param = [](const std::string& url) {
    return refused_param(
        Family::qwen4_exp,
        body("", R"([{"role": "user", "content": [{"type": "image_url", "image_url": )" + url + "}]}]"));
  };
  CHECK(param(R"({"url": "data:image/png;base64,AA=="})") == "accepted");
  for (const char* url : {R"({"url": "file:///etc/passwd"})", R"({"url": "DATA:image/png;base64,"})", R"({"url": 1})",
                          "{}", R"("data:image/png;base64,AA==")", "null"}) {
    CAPTURE(url);
    CHECK(param(url) == "messages[0].content[0].image_url");
  }
}

TEST_CASE("text parts are joined with a line feed for Kolibri and with nothing for Qwen") {
  const Json request =
      body("", R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
  const auto prompt = [&](Family family) { return build_prompt(family, read_request(family, request)).text; };
  CHECK(prompt(Family::kolibri1).find("user\na\nb<|im_end|>") != std::string::npos);
  CHECK(prompt(Family::qwen4_exp).find("user\nab<|im_end|>") != std::string::npos);
}

TEST_CASE("the prompt says where its reply starts") {
  const auto start = [](Family family, const std::string& members, const std::string& messages) {
    return build_prompt(family, read_request(family, body(members, messages))).start;
  };
  const std::string question = R"([{"role": "user", "content": "a"}])";
  const std::string begun = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  CHECK(start(Family::kolibri1, "", question) == ReplyStart::anywhere);
  CHECK(start(Family::qwen4_exp, "", question) == ReplyStart::reasoning);
  CHECK(start(Family::qwen4_exp, R"("reasoning_effort": "none")", question) == ReplyStart::anywhere);
  for (const Family family : {Family::kolibri1, Family::qwen4_exp}) {
    CHECK(start(family, R"("continue_final_message": true)", begun) == ReplyStart::content);
  }
}

}  // namespace
}  // namespace kalibri::chat
