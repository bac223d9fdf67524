// `kalibri render-chat`: the prompt of a conversation, as a filter for other programs.
#pragma once

#include <iosfwd>
#include <string>

namespace kalibri::cli {

struct RenderChatOptions {
  std::string model_type;  // kolibri1, qwen4_exp
  bool jsonl = false;
};

/// Answers each line of `in` with one line, at once: {"vars": the template's variables} with {"rendered": prompt} or,
/// when the template refuses them, {"error": why}; {"request": members of a chat request} with {"rendered": prompt} or
/// {"error_param": the member that is wrong} (why goes to `notes`). Returns the exit status; throws Error, for a line
/// that is neither with its number.
int render_chat_command(const RenderChatOptions& options, std::istream& in, std::ostream& out, std::ostream& notes);

}  // namespace kalibri::cli
