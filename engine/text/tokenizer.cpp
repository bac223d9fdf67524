#include "engine/text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/text/nfc.hpp"
#include "engine/text/printable.hpp"
#include "engine/text/split.hpp"
#include "engine/text/symbols.hpp"

namespace kalibri::text {
Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  const MappedFile mapped(file);
  return parse(mapped.bytes(), file);
}

Tokenizer Tokenizer::parse(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  return Tokenizer(parse_tokenizer_file(bytes, path), path);
}

Tokenizer::Tokenizer(TokenizerFile file, const std::filesystem::path& path)
    : bpe_(file, path),
      ignore_merges_(file.ignore_merges),
      nfc_(file.nfc),
      splits_(file.splits),
      prefix_space_(file.prefix_space),
      gpt2_split_(file.gpt2_split) {
  number_added_tokens(file, path);
  store_bytes(file, path);
}

/// Gives each added token its id: that of its entry in the vocabulary, else the next one. The id in the file is not
/// used (Hugging Face tokenizers 0.22, added_vocabulary.rs, add_tokens).
void Tokenizer::number_added_tokens(TokenizerFile& file, const std::filesystem::path& path) {
  const auto n_vocab = static_cast<std::int32_t>(file.vocab.size());
  std::int32_t highest = -1;  // id of an added token so far
  int n_renumbered = 0;
  std::string example;
  for (AddedToken& token : file.added_tokens) {
    if (token.content.empty()) continue;  // it can never be found; the reference leaves it out as well
    const auto entry = file.vocab.find(token.content);
    const std::int32_t id = entry != file.vocab.end() ? entry->second : std::max(highest + 1, n_vocab);
    highest = std::max(highest, id);
    if (!added_ids_.emplace(token.content, id).second) {
      throw Error(ErrorCode::format, fmt::format("{}: added_tokens: '{}' is given twice, expected once", path.string(),
                                                 printable(token.content)));
    }
    if (token.stated_id.has_value() && *token.stated_id != id && n_renumbered++ == 0) {
      example = fmt::format("'{}' is {}, not {}", printable(token.content), id, *token.stated_id);
    }
    if (token.special) {
      special_.resize(std::max(special_.size(), static_cast<std::size_t>(id) + 1));
      special_[static_cast<std::size_t>(id)] = true;
    }
    if (token.normalized && nfc_) token.content = nfc(token.content);
    AddedTokenFinder& finder = token.normalized ? normalized_tokens_ : raw_tokens_;
    finder.add(std::move(token), id);
  }
  if (n_renumbered > 0) {
    notes_.push_back(
        fmt::format("{}: added tokens whose id is not the file's, because they are numbered on from the "
                    "vocabulary as the reference does: {} (the first: {})",
                    path.string(), n_renumbered, example));
  }
}

void Tokenizer::store_bytes(const TokenizerFile& file, const std::filesystem::path& path) {
  std::vector<std::pair<std::int32_t, const std::string*>> contents;
  for (const auto& [content, id] : file.vocab) contents.emplace_back(id, &content);
  for (const auto& [content, id] : added_ids_) {
    if (!file.vocab.contains(content)) contents.emplace_back(id, &content);
  }
  std::ranges::sort(contents, {}, [](const auto& each) { return each.first; });
  n_tokens_ = contents.size();
  ids_of_bytes_.reserve(file.vocab.size());
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const auto& [id, content] = contents[i];
    if (i > 0 && contents[i - 1].first == id) {
      throw Error(ErrorCode::format,
                  fmt::format("{}: id {} is that of '{}' and of '{}', expected one token", path.string(), id,
                              printable(*contents[i - 1].second), printable(*content)));
    }
    const auto symbols = bytes_of_symbols(*content);  // what is not all symbols stands for itself
    if (symbols.has_value() && file.vocab.contains(*content)) ids_of_bytes_.emplace(*symbols, id);
    ends_.resize(static_cast<std::size_t>(id), static_cast<std::uint32_t>(bytes_.size()));
    bytes_ += symbols.value_or(*content);
    ends_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(ErrorCode::input, fmt::format("a text of {} bytes, expected at most {} (64 MiB); encode it in parts",
                                              text.size(), kMaxTextBytes));
  }
  std::string repaired;
  if (!is_utf8(text)) text = repaired = to_utf8(text);
  const auto split = [&](const AddedTokenFinder& finder, std::string_view stretch) {
    return added == AddedTokens::find ? finder.split(stretch) : std::vector<TextPart>{{stretch, std::nullopt}};
  };
  std::vector<std::int32_t> ids;
  Bpe::Scratch scratch;
  for (const TextPart& part : split(raw_tokens_, text)) {
    if (part.id.has_value()) {
      ids.push_back(*part.id);
      continue;
    }
    const std::string normal = nfc_ ? nfc(part.text) : std::string();
    for (const TextPart& stretch : split(normalized_tokens_, nfc_ ? normal : part.text)) {
      if (stretch.id.has_value()) {
        ids.push_back(*stretch.id);
      } else {
        encode_stretch(stretch.text, 0, scratch, ids);
      }
    }
  }
  return ids;
}

void Tokenizer::encode_stretch(std::string_view text, std::size_t n_splits_done, Bpe::Scratch& scratch,
                               std::vector<std::int32_t>& ids) const {
  std::string with_space;
  const bool is_last = n_splits_done == splits_.size();  // the stage that is left is ByteLevel
  if (is_last && prefix_space_ && !text.starts_with(' ')) text = with_space.append(" ").append(text);
  if (is_last && !gpt2_split_) return encode_piece(text, scratch, ids);
  const SplitPattern pattern = is_last ? SplitPattern::gpt2 : splits_[n_splits_done];
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t end = piece_end(pattern, text, pos);
    const std::string_view piece = text.substr(pos, end - pos);
    if (is_last) {
      encode_piece(piece, scratch, ids);
    } else {
      encode_stretch(piece, n_splits_done + 1, scratch, ids);
    }
    pos = end;
  }
}

void Tokenizer::encode_piece(std::string_view piece, Bpe::Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto whole = ids_of_bytes_.find(std::string(piece)); whole != ids_of_bytes_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  bpe_.encode(piece, scratch, ids);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.feed(id);
  return text += decoder.flush();
}

std::string_view Tokenizer::bytes_of(std::int32_t id) const {
  if (id < 0 || id >= n_ids()) return {};
  const auto i = static_cast<std::size_t>(id);
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(bytes_).substr(begin, ends_[i] - begin);
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < special_.size() && special_[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view bytes) const {
  const std::string key(bytes);
  if (const auto added = added_ids_.find(key); added != added_ids_.end()) return added->second;
  if (const auto entry = ids_of_bytes_.find(key); entry != ids_of_bytes_.end()) return entry->second;
  return std::nullopt;
}

std::string StreamDecoder::feed(std::int32_t id) {
  std::string text;
  if (!skip_special_ || !tokenizer_.is_special(id)) stream_.feed(tokenizer_.bytes_of(id), text);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text;
  stream_.flush(text);
  return text;
}

}  // namespace kalibri::text
