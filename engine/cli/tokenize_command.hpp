// `kalibri tokenize`: text to token ids, and as a filter (--jsonl) back as well.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace kalibri::cli {

struct TokenizeOptions {
  std::string tokenizer;           // a tokenizer.json, or a directory that holds one
  std::vector<std::string> texts;  // without --jsonl
  bool jsonl = false;
};

/// Writes a line of ids for each text. With `jsonl` it answers each line of `in` with one line, at once:
/// {"text": string} or {"bytes_b64": string} with {"ids": [...]}, and {"decode": [ids], "skip_special": bool} with
/// {"text": string, "stream": [string, ...]}, where `stream` is what each id released, and last what the end did. Notes
/// about the tokenizer go to `notes`. Returns the exit status; throws Error, for a line with its number.
int tokenize_command(const TokenizeOptions& options, std::istream& in, std::ostream& out, std::ostream& notes);

}  // namespace kalibri::cli
