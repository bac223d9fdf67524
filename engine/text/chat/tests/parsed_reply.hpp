// A reply read piece by piece, and ways of cutting a text into pieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/chat/reply_parser.hpp"
#include "fixtures/generator.hpp"

namespace kalibri::chat {

struct ReplyCase {
  ReplyFormat format;
  ReplyStart start;
  std::vector<Json> tools;
};

/// The sum of a reply's deltas.
struct ParsedReply {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> tool_calls;

  void add(ReplyDelta delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (ParsedCall& call : delta.tool_calls) tool_calls.push_back(std::move(call));
  }
  friend bool operator==(const ParsedReply&, const ParsedReply&) = default;
};

inline ParsedReply parse_reply(const ReplyCase& reply, const std::vector<std::string>& pieces) {
  ReplyParser parser(reply.format, reply.start, reply.tools);
  ParsedReply parsed;
  for (const std::string& piece : pieces) parsed.add(parser.feed(piece));
  parsed.add(parser.finish());
  return parsed;
}

inline std::vector<std::string> pieces_of(const std::string& text, std::size_t size) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < text.size(); at += size) pieces.push_back(text.substr(at, size));
  return pieces;
}

/// Pieces of 0 to 15 bytes.
inline std::vector<std::string> random_pieces(const std::string& text, std::uint64_t seed) {
  std::vector<std::string> pieces;
  std::size_t at = 0;
  for (std::uint64_t i = 0; at < text.size(); ++i) {
    const std::size_t size = fixtures::random_word(fixtures::mix(seed), i) % 16;
    pieces.push_back(text.substr(at, size));
    at += size;
  }
  return pieces;
}

}  // namespace kalibri::chat
