// What must hold of a reply of any bytes: it is read without a fault, and the sum of its deltas does not depend on the
// cuts.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "engine/text/chat/tests/parsed_reply.hpp"

namespace kalibri::chat {

/// Reads `text` in every format and from every start, with and without tools, whole and in pieces that `seed` chooses.
/// Throws std::runtime_error when they differ, or when a call's arguments are no JSON object.
inline void check_reply(const std::string& text, std::uint64_t seed) {
  static const std::vector<Json> kTools = {
      parse_json(R"({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "i": {"type": "integer"}, "o": {"type": "object"}, "b": {"type": ["boolean", "null"]},
        "e": {"enum": ["a", 3]}, "r": {"$ref": "#/properties/o"}}}}})")
          .value()};
  for (const ReplyFormat format : {ReplyFormat::hermes, ReplyFormat::qwen_xml}) {
    for (const ReplyStart start : {ReplyStart::anywhere, ReplyStart::reasoning, ReplyStart::content}) {
      for (const bool has_tools : {false, true}) {
        const ReplyCase reply{format, start, has_tools ? kTools : std::vector<Json>{}};
        const ParsedReply whole = parse_reply(reply, {text});
        if (parse_reply(reply, random_pieces(text, seed)) != whole || parse_reply(reply, pieces_of(text, 1)) != whole) {
          throw std::runtime_error("the sum of the deltas is not the whole");
        }
        for (const ParsedCall& call : whole.tool_calls) {
          const std::optional<Json> arguments = parse_json(call.arguments);
          if (!arguments || !arguments->is(Json::Kind::object))
            throw std::runtime_error("arguments are no JSON object");
        }
      }
    }
  }
}

}  // namespace kalibri::chat
