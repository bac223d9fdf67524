// `kalibri parse-reply`: what a model's reply is made of, as a filter for other programs.
#pragma once

#include <iosfwd>

namespace kalibri::cli {

struct ParseReplyOptions {
  bool jsonl = false;
};

/// Answers each line of `in` with one line, at once. {"format": "hermes" or "qwen_xml", "think_open_in_prompt": bool,
/// "tools": array or null, "text": string} with {"reasoning": string or null, "content": string or null, "tool_calls":
/// [{"name", "arguments"}, ...]}. With "chunks" the text is fed in pieces and the answer is the sum of what each
/// released: an array of the pieces themselves, an array of their lengths in characters (what remains is one more
/// piece), or one length for all. Returns the exit status; throws Error, for a line with its number.
int parse_reply_command(const ParseReplyOptions& options, std::istream& in, std::ostream& out);

}  // namespace kalibri::cli
