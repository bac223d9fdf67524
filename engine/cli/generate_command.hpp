// `kalibri generate`: text in, text out.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "engine/cli/chat_flags.hpp"
#include "engine/cli/speaker.hpp"
#include "engine/cli/terminal.hpp"

namespace kalibri::cli {

struct GenerateOptions {
  SpeakerFlags speaker;
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_files;  // answered after `prompts`
  bool is_literal = false;                // <|im_end|> and the like in a prompt are text, not tokens
  bool is_chat = false;                   // each prompt is a question
  ChatFlags chat;
  bool json = false;
};

/// Answers the prompts one after the other, each as if alone. The text goes to `out` as it comes, or JSON at the end;
/// everything else goes to `notes`. Returns the exit status, 130 after Ctrl-C. Throws Error.
int generate_command(const GenerateOptions& options, const Terminal& terminal, std::ostream& out, std::ostream& notes);

}  // namespace kalibri::cli
