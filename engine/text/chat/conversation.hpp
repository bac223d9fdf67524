// What a chat template is given: messages, tools and switches, typed. It knows neither template nor request.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat/json.hpp"

namespace kalibri::chat {

/// Whose prompts are written and whose replies are read.
enum class Family { kolibri1, qwen4_exp };

/// The family of config.json's model_type; nothing for another.
std::optional<Family> find_family(std::string_view model_type);

struct ContentPart {
  enum class Kind { text, image, video, unknown };
  Kind kind = Kind::text;
  std::string text = {};  // the text, or the image's URL
};

struct ToolCall {
  std::string name;
  Json arguments;  // an object; templates also take a string, which is the JSON text
};

struct Message {
  std::string role;
  std::vector<ContentPart> content = {};
  std::optional<std::string> reasoning = {};
  std::optional<std::string> reasoning_content = {};  // the older name; templates differ in which they look at
  std::vector<ToolCall> tool_calls = {};
};

/// `undetermined` is what Qwen's template makes of a value that is neither true nor false (null, a string): the prompt
/// opens the thinking, but states no effort.
enum class Thinking { on, off, undetermined };

struct Conversation {
  std::vector<Message> messages = {};
  std::vector<Json> tools = {};  // verbatim
  std::optional<std::string> reasoning_effort = {};
  Thinking thinking = Thinking::on;
  std::optional<bool> preserve_thinking = {};
  bool add_vision_id = false;
  bool add_generation_prompt = true;
};

/// The conversation that the template variables `variables` (an object: messages, tools, reasoning_effort,
/// enable_thinking, preserve_thinking, add_vision_id, add_generation_prompt) stand for, as the family's template reads
/// them: lenient where a template is. Throws Error(input) for what no template can read.
Conversation read_variables(Family family, const Json& variables);

}  // namespace kalibri::chat
