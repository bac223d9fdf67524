// How names and texts from a file are shown in messages.
#pragma once

#include <string>
#include <string_view>

namespace kalibri::text {

/// `name`, fit for a message: control characters become '?', long names are cut.
inline std::string printable(std::string_view name) {
  constexpr std::size_t kMaxShown = 160;
  std::string text(name.substr(0, kMaxShown));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return name.size() > kMaxShown ? text + "..." : text;
}

}  // namespace kalibri::text
