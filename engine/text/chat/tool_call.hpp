// One tool call as a model writes it between <tool_call> and </tool_call>. Strict: what is malformed is no call, and is
// never repaired.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat/json.hpp"

namespace kalibri::chat {

struct ParsedCall {
  std::string name;
  std::string arguments;  // the text of a JSON object

  friend bool operator==(const ParsedCall&, const ParsedCall&) = default;
};

/// Hermes: one JSON object with `name` (not empty) and `arguments` (an object, kept as it was spelled; absent, null or
/// blank for {}; or a string that holds an object).
std::optional<ParsedCall> parse_hermes_call(std::string_view body);

struct XmlCall {
  ParsedCall call;
  bool is_closed = false;  // </function> was there
};

/// Qwen: <function=NAME>, <parameter=KEY> VALUE </parameter> ..., </function>. Values are bare text; the types that the
/// function's schema among `tools` declares make JSON of them. A missing </function> is accepted when no parameter is
/// open, a missing </parameter> where a next one begins. Linear in the length of the body.
std::optional<XmlCall> parse_xml_call(std::string_view body, const std::vector<Json>& tools);

}  // namespace kalibri::chat
