#include "engine/text/added_tokens.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/text/unicode.hpp"

namespace kalibri::text {
namespace {

std::size_t before(std::string_view text, std::size_t pos) {
  do {
    --pos;
  } while ((static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

bool is(std::string_view text, std::size_t pos, std::uint8_t mask) {
  return (code_classes()[character_at(text, pos).code] & mask) != 0;
}

bool is_within_word(std::string_view text, std::size_t start, std::size_t end) {
  return (start > 0 && is(text, before(text, start), CodeClass::word)) ||
         (end < text.size() && is(text, end, CodeClass::word));
}

std::size_t skip_spaces(std::string_view text, std::size_t pos) {
  while (pos < text.size() && is(text, pos, CodeClass::space)) pos += character_at(text, pos).n_bytes;
  return pos;
}

std::size_t skip_spaces_back(std::string_view text, std::size_t pos) {
  while (pos > 0 && is(text, before(text, pos), CodeClass::space)) pos = before(text, pos);
  return pos;
}

}  // namespace

void AddedTokenFinder::add(AddedToken token, std::int32_t id) {
  const auto content_of = [](const Entry& entry) -> std::string_view { return entry.token.content; };
  const auto place = std::ranges::lower_bound(entries_, std::string_view(token.content), {}, content_of);
  begins_[static_cast<unsigned char>(token.content.front())] = true;
  entries_.insert(place, Entry{std::move(token), id});
}

/// Narrows the entries to those that begin like the text, byte by byte; an entry that ends there is the first of them.
const AddedTokenFinder::Entry* AddedTokenFinder::longest_at(std::string_view text, std::size_t pos) const {
  const Entry* longest = nullptr;
  std::span<const Entry> entries(entries_);
  for (std::size_t n_equal = 0; !entries.empty(); ++n_equal) {
    if (entries.front().token.content.size() == n_equal) longest = &entries.front();
    if (pos + n_equal == text.size()) break;
    const auto next_byte = [&](const Entry& entry) {
      return n_equal < entry.token.content.size() ? static_cast<unsigned char>(entry.token.content[n_equal]) : -1;
    };
    const int byte = static_cast<unsigned char>(text[pos + n_equal]);
    const auto begin = std::ranges::lower_bound(entries, byte, {}, next_byte);
    const auto end = std::ranges::upper_bound(entries, byte, {}, next_byte);
    entries = std::span<const Entry>(begin, end);
  }
  return longest;
}

std::vector<TextPart> AddedTokenFinder::split(std::string_view text) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;  // the text before is in `parts`
  const auto take = [&](std::size_t start, std::size_t end, std::optional<std::int32_t> id) {
    parts.push_back({text.substr(start, end - start), id});
    done = end;
  };
  for (std::size_t pos = 0; pos < text.size();) {
    const bool may_begin = begins_[static_cast<unsigned char>(text[pos])];
    const Entry* const entry = may_begin ? longest_at(text, pos) : nullptr;
    if (entry == nullptr) {
      ++pos;
      continue;
    }
    std::size_t start = pos;
    std::size_t end = pos + entry->token.content.size();
    pos = end;  // also when the token swallows the spaces behind it: another may begin with one
    if (entry->token.single_word && is_within_word(text, start, end)) continue;
    if (entry->token.lstrip) start = std::max(skip_spaces_back(text, start), done);
    if (entry->token.rstrip) end = skip_spaces(text, end);
    if (done < start) take(done, start, std::nullopt);
    take(start, end, entry->id);
  }
  if (done < text.size()) take(done, text.size(), std::nullopt);
  return parts;
}

}  // namespace kalibri::text
