// Qwen3.8-Flash-Next's prompt. Order, tests and refusals follow the template; see render.hpp for its source.
#include "engine/base/error.hpp"
#include "engine/text/chat/render.hpp"
#include "engine/text/chat/strip.hpp"

namespace kalibri::chat {

namespace {

constexpr std::string_view kEffortXhigh =
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.";
constexpr std::string_view kEffortLow =
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
    "unnecessary elaboration.";
constexpr std::string_view kToolsHead = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
constexpr std::string_view kToolsTail =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
    "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n- If there is no function call available, answer the question like normal with your current knowledge and "
    "do not tell the user about function calls\n</IMPORTANT>";

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::input, text); }

std::string_view effort_sentence(const Conversation& conversation) {
  if (conversation.thinking != Thinking::on) return "";
  const std::string effort = conversation.reasoning_effort.value_or("xhigh");
  if (effort != "xhigh" && effort != "medium" && effort != "low") {
    refuse("Unexpected reasoning effort " + effort + ". Supported types are xhigh (default), medium, and low.");
  }
  return effort == "xhigh" ? kEffortXhigh : effort == "low" ? kEffortLow : "";
}

/// Turns contents into text; counts the images and videos, when they are numbered.
class ContentWriter {
 public:
  explicit ContentWriter(bool with_ids) : with_ids_(with_ids) {}

  std::string trimmed_text(const Message& message) {
    std::string text;
    for (const ContentPart& part : message.content) {
      switch (part.kind) {
        case ContentPart::Kind::text:
          text += part.text;
          break;
        case ContentPart::Kind::image:
          add_placeholder(text, "Picture ", n_images_, "<|vision_start|><|image_pad|><|vision_end|>");
          break;
        case ContentPart::Kind::video:
          add_placeholder(text, "Video ", n_videos_, "<|vision_start|><|video_pad|><|vision_end|>");
          break;
        case ContentPart::Kind::unknown:
          refuse("Unexpected item type in content.");
      }
    }
    return std::string(strip_unicode(text));
  }

 private:
  void add_placeholder(std::string& text, const char* what, int& n, std::string_view placeholder) const {
    ++n;
    if (with_ids_) text += what + std::to_string(n) + ": ";
    text += placeholder;
  }

  bool with_ids_;
  int n_images_ = 0;
  int n_videos_ = 0;
};

/// A text that is counted nowhere.
std::string text_of(const Message& message) { return ContentWriter(false).trimmed_text(message); }

std::string system_text(const Message& message) {
  for (const ContentPart& part : message.content) {
    if (part.kind == ContentPart::Kind::image) refuse("System message cannot contain images.");
    if (part.kind == ContentPart::Kind::video) refuse("System message cannot contain videos.");
  }
  return text_of(message);
}

void add_first_block(std::string& out, const Conversation& conversation) {
  const std::string_view instruction = effort_sentence(conversation);
  const Message& first = conversation.messages.front();
  const std::string system = first.role == "system" ? system_text(first) : "";
  const bool has_tools = !conversation.tools.empty();
  if (!has_tools && instruction.empty() && system.empty()) return;
  out += "<|im_start|>system\n";
  out += instruction;
  if (has_tools) {
    if (!instruction.empty()) out += "\n\n";
    out += kToolsHead;
    for (const Json& tool : conversation.tools) out += '\n' + to_text(tool);
    out += kToolsTail;
  }
  if (!system.empty()) {
    if (has_tools || !instruction.empty()) out += "\n\n";
    out += system;
  }
  out += "<|im_end|>\n";
}

/// Index of the last question.
std::size_t last_question(const std::vector<Message>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role != "user") continue;
    const std::string text = text_of(messages[i]);
    if (!(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))) return i;
  }
  refuse("No user query found in messages.");
}

void add_call(std::string& out, const ToolCall& call) {
  out += "<tool_call>\n<function=" + call.name + ">\n";
  const Json& arguments = call.arguments;
  if (!arguments.is(Json::Kind::object) && !(arguments.is(Json::Kind::string) && arguments.text.empty())) {
    refuse("Can only get item pairs from a mapping.");
  }
  for (std::size_t i = 0; i < arguments.items.size(); ++i) {
    const Json& value = arguments.items[i];
    out += "<parameter=" + arguments.keys[i] + ">\n";
    out += value.is(Json::Kind::string) ? value.text : to_text(value);
    out += "\n</parameter>\n";
  }
  out += "</function>\n</tool_call>";
}

void add_answer(std::string& out, const Message& message, const std::string& content, bool with_reasoning) {
  out += "<|im_start|>assistant\n";
  if (with_reasoning) {
    out += "<think>\n";
    if (message.reasoning_content) out += strip_unicode(*message.reasoning_content);
    out += "\n</think>\n\n";
  }
  out += content;
  for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
    if (i > 0) {
      out += '\n';
    } else if (!content.empty()) {
      out += "\n\n";
    }
    add_call(out, message.tool_calls[i]);
  }
  out += "<|im_end|>\n";
}

}  // namespace

std::string render_qwen4_exp(const Conversation& conversation) {
  const std::vector<Message>& messages = conversation.messages;
  if (messages.empty()) refuse("No messages provided.");
  std::string out;
  add_first_block(out, conversation);
  const std::size_t last = last_question(messages);
  ContentWriter writer(conversation.add_vision_id);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const std::string content = writer.trimmed_text(message);
    if (message.role == "system") {
      if (i > 0) refuse("System message must be at the beginning.");
    } else if (message.role == "user") {
      out += "<|im_start|>user\n" + content + "<|im_end|>\n";
    } else if (message.role == "assistant") {
      add_answer(out, message, content, conversation.preserve_thinking.value_or(true) || i >= last);
    } else if (message.role == "tool") {
      if (i > 0 && messages[i - 1].role != "tool") out += "<|im_start|>user";
      out += "\n<tool_response>\n" + content + "\n</tool_response>";
      if (i + 1 == messages.size() || messages[i + 1].role != "tool") out += "<|im_end|>\n";
    } else {
      refuse("Unexpected message role.");
    }
  }
  if (conversation.add_generation_prompt) {
    out += "<|im_start|>assistant\n";
    out += conversation.thinking == Thinking::off ? "<think>\n\n</think>\n\n" : "<think>\n";
  }
  return out;
}

}  // namespace kalibri::chat
