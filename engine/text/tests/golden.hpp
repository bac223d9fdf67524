// The golden data of tokenizers: three small tokenizer.json files with ids, texts and pieces that Hugging Face
// tokenizers 0.22.2 computed.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/text/base64.hpp"
#include "engine/text/tokenizer.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_writer.hpp"

namespace kalibri::text::test {

inline constexpr const char* kTokenizers[] = {"qwen38_mini", "kolibri1_mini", "features_mini"};

inline std::filesystem::path golden_file(const std::string& name) {
  const auto set = fixtures::find_golden("tokenizer");
  if (!set.has_value()) throw std::runtime_error("fixtures/golden/tokenizer is missing");
  return *set / name;
}

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(fixtures::read_file(golden_file(name)));
}

inline Tokenizer golden_tokenizer(const std::string& name) {
  return Tokenizer::load(golden_file("tokenizer_" + name + ".json"));
}

/// The text of an entry of cases.json: as it stands, as bytes, or as parts that are repeated.
inline std::string text_of(const nlohmann::json& entry) {
  if (entry.contains("text")) return entry.at("text");
  if (entry.contains("bytes_b64")) return decode_base64(entry.at("bytes_b64").get<std::string>()).value();
  std::string text;
  for (const auto& part : entry.at("parts")) {
    for (int i = 0; i < part.at(1).get<int>(); ++i) text += part.at(0).get<std::string>();
  }
  return text;
}

}  // namespace kalibri::text::test
