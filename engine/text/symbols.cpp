#include "engine/text/symbols.hpp"

#include <array>
#include <cstddef>

#include "engine/text/unicode.hpp"

namespace kalibri::text {
namespace {

constexpr int kSymbols = 256 + 68;  // every symbol is below

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<char32_t, 256> make_symbols() {
  std::array<char32_t, 256> symbols{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    symbols[static_cast<std::size_t>(byte)] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return symbols;
}

constexpr std::array<char32_t, 256> kSymbolOf = make_symbols();

constexpr std::array<int, kSymbols> make_bytes() {
  std::array<int, kSymbols> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kSymbolOf[static_cast<std::size_t>(byte)]] = byte;
  return bytes;
}

constexpr std::array<int, kSymbols> kByteOf = make_bytes();

}  // namespace

std::string byte_symbol(unsigned char byte) {
  std::string symbol;
  append_utf8(kSymbolOf[byte], symbol);
  return symbol;
}

std::optional<std::string> bytes_of_symbols(std::string_view text) {
  std::string bytes;
  for (std::size_t pos = 0; pos < text.size();) {
    const auto [code, n_bytes] = character_at(text, pos);
    if (code >= kSymbols || kByteOf[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[code]));
    pos += n_bytes;
  }
  return bytes;
}

}  // namespace kalibri::text
