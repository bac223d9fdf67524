// The golden data of both families, read by the chat code's own JSON reader (inputs: numbers and key order kept) and by
// nlohmann's (what must come out).
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/chat/conversation.hpp"
#include "engine/text/chat/json.hpp"
#include "fixtures/golden.hpp"

namespace kalibri::chat {

struct GoldenCase {
  Family family;
  std::string name;
  Json input;
  nlohmann::ordered_json expected;  // the same case
};

/// The cases of `group` (template_cases, request_cases, parse_cases); none when the golden data are missing.
inline std::vector<GoldenCase> golden_cases(const std::string& group) {
  std::vector<GoldenCase> cases;
  const auto set = fixtures::find_golden("chat");
  if (!set) return cases;
  for (const auto& [file, family] :
       {std::pair{"kolibri1.json", Family::kolibri1}, {"qwen38.json", Family::qwen4_exp}}) {
    std::ifstream stream(*set / file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const Json inputs = parse_json(text).value();
    const auto expected = nlohmann::ordered_json::parse(text);
    const Json& list = *inputs.find(group);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      const auto& single = expected.at(group).at(i);
      cases.push_back({family, single.at("name"), list.items[i], single});
    }
  }
  return cases;
}

}  // namespace kalibri::chat
