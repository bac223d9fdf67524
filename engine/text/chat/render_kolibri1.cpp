// Kolibri 1's prompt. Order and tests follow the template; see render.hpp for its source.
#include "engine/base/error.hpp"
#include "engine/text/chat/render.hpp"
#include "engine/text/chat/strip.hpp"

namespace kalibri::chat {

namespace {

constexpr std::string_view kEffortNone =
    "Reasoning is disabled. Proceed straight to answering according to the user's instructions.";
constexpr std::string_view kEffortLow =
    "Reasoning effort is set to low. Think briefly through only the essential steps in the user's language, then "
    "proceed directly to the answer.";
constexpr std::string_view kEffortMedium =
    "Reasoning effort is set to medium. Think through the task methodically in the user's language, check key "
    "assumptions, and provide a well-supported answer.";
constexpr std::string_view kEffortHigh =
    "Reasoning effort is set to high. Think carefully through the task in the user's language, validate key "
    "assumptions, consider plausible alternatives, and prioritize correctness and clarity.";
constexpr std::string_view kEffortHeading = "# Reasoning effort\n\n";
constexpr std::string_view kToolsHead =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    R"({"name": <function-name>, "arguments": <args-json-object>})"
    "\n</tool_call>";

bool is_thinking_off(const Conversation& conversation) {
  if (conversation.reasoning_effort) return *conversation.reasoning_effort == "none";
  return conversation.thinking == Thinking::off;
}

std::string_view effort_sentence(const Conversation& conversation) {
  if (is_thinking_off(conversation)) return kEffortNone;
  const std::string effort = conversation.reasoning_effort.value_or("high");
  if (effort == "minimal" || effort == "low") return kEffortLow;
  return effort == "medium" ? kEffortMedium : kEffortHigh;
}

/// The parts joined with a line feed.
std::string text_of(const Message& message) {
  std::string text;
  for (std::size_t i = 0; i < message.content.size(); ++i) {
    if (message.content[i].kind != ContentPart::Kind::text) {
      throw Error(ErrorCode::input, "content: this model reads text only");
    }
    if (i > 0) text += '\n';
    text += message.content[i].text;
  }
  return text;
}

/// Index of the last question; of the last message when there is none.
std::size_t last_question(const std::vector<Message>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string text = messages[i].role == "user" ? text_of(messages[i]) : "";
    if (messages[i].role == "user" && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))) {
      return i;
    }
  }
  return messages.empty() ? 0 : messages.size() - 1;
}

void add_first_block(std::string& out, const Conversation& conversation) {
  out += "<|im_start|>system\n";
  const auto& messages = conversation.messages;
  if (!messages.empty() && messages.front().role == "system") out += text_of(messages.front()) + "\n\n";
  out += kEffortHeading;
  out += effort_sentence(conversation);
  if (!conversation.tools.empty()) {
    out += "\n\n";
    out += kToolsHead;
    for (const Json& tool : conversation.tools) out += '\n' + to_text(tool);
    out += kToolsTail;
  }
  out += "<|im_end|>\n";
}

void add_answer(std::string& out, const Message& message, bool with_reasoning) {
  std::string content = text_of(message);
  std::optional<std::string> reasoning = message.reasoning ? message.reasoning : message.reasoning_content;
  if (const std::size_t close = content.find("</think>"); !reasoning && close != std::string::npos) {
    std::string_view thought = strip_back(std::string_view(content).substr(0, close), "\n");
    if (const std::size_t open = thought.rfind("<think>"); open != std::string_view::npos) {
      thought.remove_prefix(open + std::string_view("<think>").size());
    }
    reasoning = strip_front(thought, "\n");
    const std::size_t last = content.rfind("</think>") + std::string_view("</think>").size();
    content = strip_front(std::string_view(content).substr(last), "\n");
  }
  out += "<|im_start|>assistant\n";
  if (with_reasoning) {
    out += "<think>\n";
    if (reasoning && !strip_unicode(*reasoning).empty()) out += strip(*reasoning, "\n");
    out += "\n</think>\n\n";
  }
  out += strip_front(content, "\n");
  for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    if (i > 0 || !content.empty()) out += '\n';
    out += "<tool_call>\n{\"name\": \"" + call.name + "\", \"arguments\": ";
    out += call.arguments.is(Json::Kind::string) ? call.arguments.text : to_text(call.arguments);
    out += "}\n</tool_call>";
  }
  out += "<|im_end|>\n";
}

}  // namespace

std::string render_kolibri1(const Conversation& conversation) {
  const std::vector<Message>& messages = conversation.messages;
  std::string out;
  add_first_block(out, conversation);
  const std::size_t last = last_question(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == "user" || (message.role == "system" && i > 0)) {
      out += "<|im_start|>" + message.role + '\n' + text_of(message) + "<|im_end|>\n";
    } else if (message.role == "assistant") {
      add_answer(out, message, i > last || conversation.preserve_thinking.value_or(false));
    } else if (message.role == "tool") {
      if (i == 0 || messages[i - 1].role != "tool") out += "<|im_start|>user";
      out += "\n<tool_response>\n" + text_of(message) + "\n</tool_response>";
      if (i + 1 == messages.size() || messages[i + 1].role != "tool") out += "<|im_end|>\n";
    }
  }
  if (conversation.add_generation_prompt) {
    out += "<|im_start|>assistant\n";
    if (is_thinking_off(conversation)) out += "<think>\n\n</think>\n\n";
  }
  return out;
}

}  // namespace kalibri::chat
