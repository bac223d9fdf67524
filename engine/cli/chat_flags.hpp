// How a command line begins a conversation.
#pragma once

#include <iosfwd>
#include <string>

#include "engine/text/chat/conversation.hpp"
#include "engine/text/chat/reply_parser.hpp"
#include "engine/text/chat/request.hpp"

namespace kalibri::cli {

struct ChatFlags {
  std::string system;  // empty: none
  std::string effort;  // empty: the family's default
  bool no_think = false;
  std::string tools_file;  // JSON: an array of tools, as in a chat request
  bool require_known_template = false;
};

/// The family of a model type. Throws Error(config): its conversations are not known.
chat::Family chat_family(const std::string& model_type);

/// A request without a question yet: system text, tools and thinking as the flags say. Throws Error(usage | file |
/// input) naming the flag.
chat::ChatRequest begin_conversation(chat::Family family, const ChatFlags& flags);

/// Throws Error(config) when the checkpoint's template is another one and must not be, otherwise tells `notes`.
void check_template(chat::Family family, const std::string& directory, const ChatFlags& flags, std::ostream& notes);

/// How a family writes tool calls.
chat::ReplyFormat reply_format(chat::Family family);

/// For the reply to `prompt`.
chat::ReplyParser make_parser(chat::Family family, const chat::ChatRequest& request, const chat::Prompt& prompt);

}  // namespace kalibri::cli
