// `kalibri chat`: a conversation, line by line.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "engine/cli/chat_flags.hpp"
#include "engine/cli/speaker.hpp"
#include "engine/cli/terminal.hpp"

namespace kalibri::cli {

struct ChatOptions {
  SpeakerFlags speaker;
  ChatFlags chat;
  std::int64_t context = 16384;  // positions for the whole conversation, at most the model's
};

/// Answers each line of the descriptor `in` until its end, /quit, or Ctrl-C twice at the prompt; Ctrl-C during an
/// answer ends the answer. Without a terminal nothing but answers is printed, and Ctrl-C ends the program. Returns the
/// exit status, 130 after Ctrl-C. Throws Error; on a terminal what is wrong with one line is told, and the next
/// awaited.
int chat_command(const ChatOptions& options, const Terminal& terminal, int in, std::ostream& out, std::ostream& notes);

}  // namespace kalibri::cli
