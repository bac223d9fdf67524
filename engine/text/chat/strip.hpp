// Removing whitespace from the ends of a text, in the two senses that chat needs. Views into what they are given.
#pragma once

#include <string_view>

namespace kalibri::chat {

/// Space, tab, CR, LF: what JSON calls whitespace, and what separates the parts of a reply.
constexpr std::string_view kSpaces = " \t\r\n";
constexpr bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/// Without the characters of `set` at its begin, its end, or both.
constexpr std::string_view strip_front(std::string_view text, std::string_view set) {
  const auto first = text.find_first_not_of(set);
  return first == std::string_view::npos ? text.substr(text.size()) : text.substr(first);
}
constexpr std::string_view strip_back(std::string_view text, std::string_view set) {
  return text.substr(0, text.find_last_not_of(set) + 1);
}
constexpr std::string_view strip(std::string_view text, std::string_view set = kSpaces) {
  return strip_back(strip_front(text, set), set);
}

/// As Python's str.strip(): Unicode's whitespace (str.isspace), which neither U+200B nor U+FEFF is. `text` is UTF-8.
std::string_view strip_unicode(std::string_view text);

}  // namespace kalibri::chat
