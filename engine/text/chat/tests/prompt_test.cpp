// Both prompts against what the official templates rendered, byte for byte.
#include <string>

#include "engine/base/error.hpp"
#include "engine/text/chat/render.hpp"
#include "engine/text/chat/request.hpp"
#include "engine/text/chat/tests/golden_cases.hpp"
#include "fixtures/catch.hpp"

namespace kalibri::chat {
namespace {

struct Outcome {
  const char* kind;  // the member of a golden case that tells it
  std::string text;
};

Outcome render_variables(const GoldenCase& golden) {
  try {
    return {"rendered", render(golden.family, read_variables(golden.family, *golden.input.find("vars")))};
  } catch (const Error& error) {
    return {"error", error.what()};
  }
}

Outcome render_request(const GoldenCase& golden) {
  try {
    return {"rendered", build_prompt(golden.family, read_request(golden.family, *golden.input.find("request"))).text};
  } catch (const RequestError& error) {
    return {"error_param", error.param()};
  }
}

void check_all(const std::string& group, std::size_t n_expected, Outcome (*outcome_of)(const GoldenCase&)) {
  const auto cases = golden_cases(group);
  if (cases.empty()) KALIBRI_SKIP("no golden data of chat");
  CHECK(cases.size() == n_expected);
  for (const GoldenCase& golden : cases) {
    INFO(golden.name);
    const Outcome outcome = outcome_of(golden);
    REQUIRE(golden.expected.contains(outcome.kind));
    CHECK(outcome.text == golden.expected.at(outcome.kind).get<std::string>());
  }
}

TEST_CASE("every golden case of template variables is rendered or refused as the template does it") {
  check_all("template_cases", 49 + 53, render_variables);
}

TEST_CASE("every golden request becomes its prompt or is refused by the member's name") {
  check_all("request_cases", 28 + 28, render_request);
}

TEST_CASE("the fixed strings of the golden data all stand in the prompts") {
  const auto set = fixtures::find_golden("chat");
  if (!set) KALIBRI_SKIP("no golden data of chat");
  std::ifstream stream(*set / "literals.json");
  const auto literals = nlohmann::json::parse(stream);
  std::string error;
  Conversation conversation{{{"user", {{ContentPart::Kind::text, "a"}}}}};
  conversation.tools = {parse_json(R"({"type": "function"})").value()};
  std::string kolibri, qwen;
  for (const char* effort : {"none", "low", "medium", "high"}) {
    conversation.reasoning_effort = effort;
    kolibri += render_kolibri1(conversation);
  }
  conversation.messages[0].content.push_back({ContentPart::Kind::image});
  conversation.messages[0].content.push_back({ContentPart::Kind::video});
  for (const char* effort : {"low", "medium", "xhigh"}) {
    conversation.reasoning_effort = effort;
    qwen += render_qwen4_exp(conversation);
  }
  for (const auto& [name, text] : literals.at("kolibri1").items()) {
    INFO(name);
    CHECK(kolibri.find(text.get<std::string>()) != std::string::npos);
  }
  for (const auto& [name, text] : literals.at("qwen38").items()) {
    INFO(name);
    CHECK(qwen.find(text.get<std::string>()) != std::string::npos);
  }
}

TEST_CASE("reasoning of a turn before the last question stays out of Kolibri's prompt and in it when asked for") {
  Conversation conversation;
  conversation.messages = {{"user"}, {"assistant"}, {"user"}};
  conversation.messages[1].reasoning = "planned";
  CHECK(render_kolibri1(conversation).find("planned") == std::string::npos);
  conversation.preserve_thinking = true;
  CHECK(render_kolibri1(conversation).find("<think>\nplanned\n</think>\n\n") != std::string::npos);
}

TEST_CASE("Qwen counts images over the whole conversation") {
  Conversation conversation;
  conversation.add_vision_id = true;
  conversation.messages = {
      {"user", {{ContentPart::Kind::image}}}, {"assistant"}, {"user", {{ContentPart::Kind::image}}}};
  const std::string prompt = render_qwen4_exp(conversation);
  CHECK(prompt.find("Picture 1: <|vision_start|>") < prompt.find("Picture 2: <|vision_start|>"));
  CHECK(prompt.find("Picture 3") == std::string::npos);
}

}  // namespace
}  // namespace kalibri::chat
