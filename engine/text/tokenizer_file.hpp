// A tokenizer.json as data: read, checked, and everything refused that Kalibri would not tokenise exactly as Hugging
// Face tokenizers does. It knows the file's format and not how text is encoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kalibri::text {

/// How the text between added tokens is cut into pieces. Each is one regular expression, known by its text.
enum class SplitPattern {
  letters,            // words are runs of letters (Kolibri 1, Qwen 3)
  letters_and_marks,  // words are runs of letters and combining marks (Qwen 3.5 and later)
  gpt2,               // the one built into the ByteLevel stage
};

struct AddedToken {
  std::string content;
  std::optional<std::int64_t> stated_id;  // what the file says; the reference does not use it
  bool special = false;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
};

struct TokenizerFile {
  std::unordered_map<std::string, std::int32_t> vocab;      // keys as in the file: bytes written as symbols
  std::vector<std::pair<std::string, std::string>> merges;  // by falling priority
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
  bool nfc = false;
  std::vector<SplitPattern> splits;  // applied one after the other, each to the pieces of the one before
  bool prefix_space = false;         // of the ByteLevel stage: before each piece after `splits`
  bool gpt2_split = false;           // of the ByteLevel stage: the pattern gpt2, last
};

/// Largest file and largest id that are read.
inline constexpr std::size_t kMaxTokenizerBytes = std::size_t{64} << 20;
inline constexpr std::int32_t kMaxTokenId = 1 << 24;

/// Reads a tokenizer.json; `path` names it in messages. Throws Error(format) naming the member at fault: no JSON, a key
/// twice in one object, nested deeper than 32, ids that are negative, too large or given twice, a member that is
/// missing or of the wrong kind, and whatever would change ids and is not one of the above (another model type,
/// dropout, another normaliser or pattern, a post-processor that adds tokens, ...).
TokenizerFile parse_tokenizer_file(std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace kalibri::text
