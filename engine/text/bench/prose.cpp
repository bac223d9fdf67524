#include "engine/text/bench/prose.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "engine/text/symbols.hpp"

namespace kalibri::text::bench {
namespace {

constexpr std::size_t kWords = 60000;
constexpr std::size_t kVocabulary = 128000;
constexpr std::size_t kAdded = 106;

/// splitmix64: its k-th number depends on the seed alone.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

struct Syllables {
  std::vector<std::string> onsets, nuclei, codas;
};

Language make_language(const char* name, const Syllables& from, std::size_t capital_every, std::uint64_t seed) {
  Random random(seed);
  Language language{name, {}};
  std::unordered_set<std::string> seen;
  while (language.words.size() < kWords) {
    // Frequent words are short, as in a living language.
    const std::size_t n_syllables = 1 + random.below(language.words.size() < 300    ? 1
                                                     : language.words.size() < 6000 ? 2
                                                                                    : 4);
    std::string word;
    for (std::size_t i = 0; i < n_syllables; ++i) {
      word += from.onsets[random.below(from.onsets.size())] + from.nuclei[random.below(from.nuclei.size())] +
              from.codas[random.below(from.codas.size())];
    }
    const bool is_ascii = static_cast<unsigned char>(word.front()) < 0x80;
    if (is_ascii && random.below(capital_every) == 0) word.front() = static_cast<char>(word.front() - 'a' + 'A');
    if (seen.insert(word).second) language.words.push_back(word);
  }
  return language;
}

class VocabularyBuilder {
 public:
  VocabularyBuilder() {
    for (int byte = 0; byte < 256; ++byte) add(byte_symbol(static_cast<unsigned char>(byte)));
  }
  [[nodiscard]] bool is_full() const { return vocab_.size() + kAdded == kVocabulary; }
  /// Adds the merge of two entries, unless its result is one already.
  void merge(const std::string& left, const std::string& right) {
    if (is_full() || vocab_.contains(left + right)) return;
    merges_.push_back({left, right});
    add(left + right);
  }
  /// Adds `bytes`, built from its first byte on. Returns how it is written.
  std::string add_prefixes(const std::string& bytes) {
    std::string prefix = byte_symbol(static_cast<unsigned char>(bytes.front()));
    for (std::size_t i = 1; i < bytes.size(); ++i) {
      const std::string next = byte_symbol(static_cast<unsigned char>(bytes[i]));
      merge(prefix, next);
      prefix += next;
    }
    return prefix;
  }
  [[nodiscard]] nlohmann::json model() const { return {{"type", "BPE"}, {"vocab", vocab_}, {"merges", merges_}}; }

 private:
  void add(const std::string& symbols) { vocab_.emplace(symbols, vocab_.size()); }

  std::unordered_map<std::string, std::size_t> vocab_;
  std::vector<std::pair<std::string, std::string>> merges_;
};

}  // namespace

Language english() {
  return make_language(
      "English",
      {{"", "b", "c", "ch", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "sh", "st", "t", "th", "tr", "w"},
       {"a", "e", "i", "o", "u", "ea", "ou", "oo", "ai"},
       {"", "", "n", "r", "s", "t", "d", "ng", "l", "st", "ck", "ment", "tion", "ly"}},
      20, 1);
}

Language german() {
  return make_language(
      "German",
      {{"", "b", "d", "f", "g", "h", "k", "l", "m", "n", "r", "s", "sch", "st", "t", "v", "w", "z", "ge", "ver"},
       {"a", "e", "i", "o", "u", "ä", "ö", "ü", "ei", "ie", "au"},
       {"", "", "n", "r", "s", "t", "ß", "ch", "cht", "ng", "l", "en", "er", "ung"}},
      3, 2);
}

std::string prose(const Language& language, std::size_t n_bytes, std::uint64_t seed) {
  Random random(seed);
  std::string text;
  while (text.size() < n_bytes) {
    const std::size_t n_words = 4 + random.below(16);
    for (std::size_t i = 0; i < n_words; ++i) {
      // Zipf's law: the logarithm of the rank is uniform.
      const double rank = std::exp(random.uniform() * std::log(static_cast<double>(kWords)));
      if (i > 0) text += random.below(9) == 0 ? ", " : " ";
      text += random.below(60) == 0 ? std::to_string(random.below(3000))
                                    : language.words[static_cast<std::size_t>(rank) - 1];
    }
    text += random.below(8) == 0 ? "?" : ".";
    text += random.below(6) == 0 ? "\n\n" : " ";
  }
  return text;
}

std::string tokenizer_json(std::span<const Language> languages, bool nfc) {
  VocabularyBuilder builder;
  for (const std::string& unit :
       {std::string("a"), std::string(" "), std::string("\xCC\x81"), std::string("\xCC\xA3")}) {
    std::string run = builder.add_prefixes(unit);
    for (int doubling = 0; doubling < 4; ++doubling) {
      builder.merge(run, run);
      run += run;
    }
  }
  for (std::size_t i = 0; i < kWords && !builder.is_full(); ++i) {
    for (const Language& language : languages) builder.add_prefixes(" " + language.words[i]);
  }
  nlohmann::json added = nlohmann::json::array();
  for (std::size_t i = 0; i < kAdded; ++i) {
    added.push_back({{"id", kVocabulary - kAdded + i},
                     {"content", "<|token_" + std::to_string(i) + "|>"},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  const std::string letters = nfc ? R"([\p{L}\p{M}])" : R"(\p{L})";
  const std::string classes = nfc ? R"(\p{L}\p{M})" : R"(\p{L})";
  const std::string regex = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?)" + letters + R"(+|\p{N}| ?[^\s)" +
                            classes + R"(\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const nlohmann::json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  nlohmann::json file = {{"added_tokens", added}, {"decoder", byte_level}, {"model", builder.model()}};
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
        byte_level}}};
  if (nfc) file["normalizer"] = {{"type", "NFC"}};
  return file.dump();
}

}  // namespace kalibri::text::bench
