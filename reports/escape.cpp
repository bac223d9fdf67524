#include "reports/escape.hpp"

namespace kalibri::reports {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\n':
        result += "&#10;";
        break;
      case '\t':
        result += "&#9;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;  // XML 1.0 has no other control characters
    }
  }
  return result;
}

}  // namespace kalibri::reports
