#include "engine/text/added_tokens.hpp"

#include <algorithm>
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
  auto& entries = by_first_byte_[static_cast<unsigned char>(token.content.front())];
  const std::size_t n_bytes = token.content.size();
  const auto place = std::ranges::find_if(entries, [&](const Entry& e) { return e.token.content.size() < n_bytes; });
  entries.insert(place, Entry{std::move(token), id});
}

const AddedTokenFinder::Entry* AddedTokenFinder::longest_at(std::string_view text, std::size_t pos) const {
  for (const Entry& entry : by_first_byte_[static_cast<unsigned char>(text[pos])]) {
    if (text.substr(pos).starts_with(entry.token.content)) return &entry;
  }
  return nullptr;
}

std::vector<TextPart> AddedTokenFinder::split(std::string_view text) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;  // the text before is in `parts`
  const auto take = [&](std::size_t start, std::size_t end, std::optional<std::int32_t> id) {
    parts.push_back({text.substr(start, end - start), id});
    done = end;
  };
  for (std::size_t pos = 0; pos < text.size();) {
    const Entry* const entry = longest_at(text, pos);
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
