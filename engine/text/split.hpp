// Cuts text into the pieces that are encoded one by one: the regular expressions of the known tokenizers, written out
// as scanners. A regular expression library would bring tables of another Unicode version, and gains nothing.
#pragma once

#include <cstddef>
#include <string_view>

#include "engine/text/tokenizer_file.hpp"

namespace kalibri::text {

/// The end of the piece of `text` that begins at pos < text.size(): what `pattern` matches there. Pieces cover the
/// text; finding all takes linear time. The text is well-formed UTF-8. The end of `text` is the end for a look-ahead.
std::size_t piece_end(SplitPattern pattern, std::string_view text, std::size_t pos);

}  // namespace kalibri::text
