#include "engine/text/base64.hpp"

#include <cstddef>
#include <cstdint>

namespace kalibri::text {

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  const std::size_t n_padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : text.substr(0, text.size() - n_padding)) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6 | static_cast<std::uint32_t>(digit)) & 0xFFFF;
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    bytes.push_back(static_cast<char>(bits >> n_bits & 0xFF));
  }
  if ((bits & ((1U << n_bits) - 1)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace kalibri::text
