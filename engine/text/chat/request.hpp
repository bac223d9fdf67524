// From the members of an OpenAI chat request that shape the prompt to the prompt. Strict: what a template would swallow
// or misread is refused here, by the member's name. Sampling, streaming and limits of a server are not its business.
#pragma once

#include <string>

#include "engine/base/error.hpp"
#include "engine/text/chat/conversation.hpp"
#include "engine/text/chat/reply_parser.hpp"

namespace kalibri::chat {

/// A member of a request that is wrong; `param` is its path, such as "messages[2].content[0].type".
class RequestError : public Error {
 public:
  RequestError(const std::string& param, const std::string& text)
      : Error(ErrorCode::input, param + ": " + text), param_(param) {}
  [[nodiscard]] const std::string& param() const { return param_; }

 private:
  std::string param_;
};

struct ChatRequest {
  Conversation conversation;  // its tools are those that the model is told of: none with tool_choice "none"
  bool continue_final_message = false;
};

struct Prompt {
  std::string text;
  ReplyStart start = ReplyStart::anywhere;
};

/// Reads messages, tools, tool_choice, reasoning_effort, chat_template_kwargs, continue_final_message and
/// add_generation_prompt of `body` (an object; members that are null count as absent, others are not looked at).
/// Throws RequestError.
ChatRequest read_request(Family family, const Json& body);

/// The prompt of a request: as the conversation is rendered, without the end of the turn that is to be continued.
/// Throws RequestError when the conversation holds no question that the family's template would accept.
Prompt build_prompt(Family family, const ChatRequest& request);

}  // namespace kalibri::chat
