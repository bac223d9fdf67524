// The bytes of a tokenizer.json as a small JSON document, and its two large members, model.vocab and model.merges,
// apart: they hold hundreds of thousands of entries, which a document would keep at ten times their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kalibri::text {

struct TokenizerJson {
  nlohmann::json document;  // without the members below
  std::unordered_map<std::string, std::int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
};

/// Throws Error(format): no JSON, a key twice in one object, nested deeper than 32, model.vocab missing or no object of
/// distinct ids from 0 to kMaxTokenId, model.merges missing or no list of pairs (["a", "b"], or the older "a b").
TokenizerJson parse_tokenizer_json(std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace kalibri::text
