// Text to measure a tokenizer with, and a tokenizer of the size of a released one for it. Everything is made from a
// seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kalibri::text::bench {

struct Language {
  const char* name;
  std::vector<std::string> words;  // the most frequent first
};

/// 60,000 different made-up words each, of the syllables, umlauts and capitals of English and of German.
Language english();
Language german();

/// Sentences of about `n_bytes` with word frequencies by Zipf's law, punctuation, numbers and paragraphs.
std::string prose(const Language& language, std::size_t n_bytes, std::uint64_t seed);

/// A tokenizer.json of 128,000 entries: byte symbols, 127,638 merges and 106 added tokens. The merges build the most
/// frequent words of both languages from their first byte on, and runs of letters, spaces and marks by doubling.
/// With `nfc`: pattern and normaliser of Qwen 3.8, else those of Kolibri 1.
std::string tokenizer_json(std::span<const Language> languages, bool nfc);

}  // namespace kalibri::text::bench
