// Byte symbols: how tokenizer.json writes bytes as characters. Bytes that print in Latin-1 stand for themselves, the 68
// others are U+0100, U+0101, ... in rising order (GPT-2, encoder.py, bytes_to_unicode).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kalibri::text {

/// The symbol of `byte`, as UTF-8.
std::string byte_symbol(unsigned char byte);

/// The bytes that `text` (well-formed UTF-8) writes; nothing when a character of it is no symbol.
std::optional<std::string> bytes_of_symbols(std::string_view text);

}  // namespace kalibri::text
