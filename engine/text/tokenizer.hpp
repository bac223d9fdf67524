// From text to token ids and back, exactly as the tokenizer.json of a checkpoint says. The one header that users of
// engine/text's tokenizer need. It knows no model: whether ids fit a network is for its caller to check (n_ids).
//
//   const auto tokenizer = text::Tokenizer::load(directory);
//   const std::vector<std::int32_t> ids = tokenizer.encode("Der Kolibri");
//   text::StreamDecoder decoder(tokenizer, /*skip_special=*/true);
//   for (std::int32_t id : ids) std::cout << decoder.feed(id);
//   std::cout << decoder.flush();
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/added_tokens.hpp"
#include "engine/text/bpe.hpp"
#include "engine/text/tokenizer_file.hpp"
#include "engine/text/unicode.hpp"

namespace kalibri::text {

/// Whether text that reads like an added token (for example <|im_end|>) becomes that token. The reference does so
/// always; what a user typed is safer without.
enum class AddedTokens { find, ignore };

class Tokenizer {
 public:
  /// Reads a tokenizer.json, or the one in a directory. Throws Error(file | format) naming the file and the member at
  /// fault; whatever would not be tokenised exactly as Hugging Face tokenizers does is refused.
  static Tokenizer load(const std::filesystem::path& path);
  /// The same from memory; `path` names the file in messages.
  static Tokenizer parse(std::span<const std::byte> bytes, const std::filesystem::path& path);

  /// The ids of a text; none is added at its ends. Ill-formed UTF-8 counts as U+FFFD (Utf8Stream). Any number of
  /// threads may call it. Throws Error(input) for more than kMaxTextBytes.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, AddedTokens added = AddedTokens::find) const;
  static constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;

  /// The text of ids, well-formed UTF-8 (Utf8Stream). Ids without bytes yield none, nor with `skip_special` those that
  /// are special.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  /// The bytes that an id stands for, often no whole character; none for an id that is not assigned.
  [[nodiscard]] std::string_view bytes_of(std::int32_t id) const;
  /// Whether an id is that of an added token that the file calls special.
  [[nodiscard]] bool is_special(std::int32_t id) const;
  /// The id of the added token, or else of the vocabulary's entry, that stands for exactly these bytes.
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view bytes) const;

  /// Every id is below this; the vocab_size of a network is at least as large. The rows above are padding.
  [[nodiscard]] std::int32_t n_ids() const { return static_cast<std::int32_t>(ends_.size()); }
  /// How many ids are assigned.
  [[nodiscard]] std::size_t n_tokens() const { return n_tokens_; }
  /// What a person should know about the file, a sentence each; mostly nothing.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  Tokenizer(TokenizerFile file, const std::filesystem::path& path);
  void number_added_tokens(TokenizerFile& file, const std::filesystem::path& path);
  void store_bytes(const TokenizerFile& file, const std::filesystem::path& path);
  void encode_stretch(std::string_view text, std::size_t n_splits_done, Bpe::Scratch& scratch,
                      std::vector<std::int32_t>& ids) const;
  void encode_piece(std::string_view piece, Bpe::Scratch& scratch, std::vector<std::int32_t>& ids) const;

  Bpe bpe_;
  bool ignore_merges_;
  bool nfc_;
  std::vector<SplitPattern> splits_;
  bool prefix_space_;
  bool gpt2_split_;
  AddedTokenFinder raw_tokens_;         // found in the text as it came
  AddedTokenFinder normalized_tokens_;  // found after normalisation
  std::unordered_map<std::string, std::int32_t> added_ids_;
  std::vector<bool> special_;  // by id
  std::string bytes_;          // of all ids, one after the other
  std::vector<std::uint32_t> ends_;
  std::unordered_map<std::string, std::int32_t> ids_of_bytes_;
  std::size_t n_tokens_ = 0;
  std::vector<std::string> notes_;
};

/// Decodes ids one by one as they are generated. What it has given out is never revised, so the bytes of a character
/// that is not complete are held back; all that it gives, joined, is what `decode` gives. The tokenizer outlives it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// The text that is certain once `id` has come: well-formed UTF-8, maybe empty.
  std::string feed(std::int32_t id);
  /// The rest, at the end of the text. The decoder is as new then.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace kalibri::text
