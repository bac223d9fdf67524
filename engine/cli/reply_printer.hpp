// A model's reply as a person reads it, while it comes: thinking dim, then the answer, tool calls a line each.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/chat/reply_parser.hpp"

namespace kalibri::cli {

/// `text` without what would steer a terminal: control characters but LF and tab become '?'. UTF-8, whole characters.
std::string for_terminal(std::string_view text);

struct Reply {
  std::string reasoning;
  std::string content;
  std::vector<chat::ParsedCall> tool_calls;
};

class ReplyPrinter {
 public:
  /// On a terminal thinking is dim and text is made harmless; elsewhere thinking stands between <think> and </think>.
  ReplyPrinter(std::ostream& out, bool is_terminal, chat::ReplyParser parser)
      : out_(out), is_terminal_(is_terminal), parser_(std::move(parser)) {}
  /// A reply that broke off leaves no terminal dim.
  ~ReplyPrinter();
  ReplyPrinter(const ReplyPrinter&) = delete;
  ReplyPrinter& operator=(const ReplyPrinter&) = delete;

  void feed(std::string_view text) { print(parser_.feed(text)); }
  /// The reply is over: the rest, and the end of the line.
  const Reply& finish();

 private:
  enum class Part { none, reasoning, content, call };

  void print(const chat::ReplyDelta& delta);
  void begin(Part part);
  void write(std::string_view text);

  std::ostream& out_;
  bool is_terminal_;
  chat::ReplyParser parser_;
  Part part_ = Part::none;
  Reply reply_;
};

}  // namespace kalibri::cli
