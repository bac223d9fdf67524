#include "engine/text/chat/strip.hpp"

#include <array>

namespace kalibri::chat {

namespace {

// The UTF-8 of every character for which Python's str.isspace() holds.
constexpr std::array<std::string_view, 29> kUnicodeSpaces = {
    "\t",     "\n",     "\v",     "\f",     "\r",     "\x1C",   "\x1D",   "\x1E",   "\x1F",   " ",
    "\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
    "\u2007", "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};

}  // namespace

std::string_view strip_unicode(std::string_view text) {
  const auto remove_one = [&] {
    for (const std::string_view space : kUnicodeSpaces) {
      if (text.starts_with(space)) {
        text.remove_prefix(space.size());
        return true;
      }
      if (text.ends_with(space)) {
        text.remove_suffix(space.size());
        return true;
      }
    }
    return false;
  };
  while (remove_one()) {
  }
  return text;
}

}  // namespace kalibri::chat
