// Normalisation form C as tokenizers know it: with the tables of Unicode 9.0. Linear but for sorting, whatever the
// input.
#pragma once

#include <string>
#include <string_view>

namespace kalibri::text {

/// `text`, which is well-formed UTF-8, in NFC of Unicode 9.0 (Unicode Standard Annex 15; the version is that of the
/// crate unicode-normalization-alignments, which Hugging Face tokenizers uses). Code points of later versions stay as
/// they are.
std::string nfc(std::string_view text);

}  // namespace kalibri::text
