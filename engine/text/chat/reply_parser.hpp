// Reads a model's reply while it arrives: what is reasoning, what is answer, what is a tool call. Works on decoded
// text, not on tokens, because a marker can arrive in pieces. It knows neither stop tokens nor stop strings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat/json.hpp"
#include "engine/text/chat/tool_call.hpp"

namespace kalibri::chat {

/// How a family writes its tool calls: Kolibri JSON, Qwen tags.
enum class ReplyFormat { hermes, qwen_xml };

/// Where the reply to a prompt begins: inside the thinking that the prompt opened, inside an answer that the prompt
/// began, or anywhere (the model may open its thinking itself).
enum class ReplyStart { anywhere, reasoning, content };

/// What a piece of the reply added.
struct ReplyDelta {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> tool_calls;
};

/// The sum of the deltas does not depend on how the text was cut into pieces. A malformed call is content. Text goes
/// out as soon as it cannot belong to a marker, and whitespace as soon as it cannot be whitespace that the rules
/// remove. The cost is linear in the length of the reply, times the number of "</tool_call>" that one value holds (at
/// most 256 are taken for part of it).
class ReplyParser {
 public:
  /// `tools` are the request's; empty when it has none (or forbids them): then calls are plain text.
  ReplyParser(ReplyFormat format, ReplyStart start, std::vector<Json> tools);

  /// Any bytes; when they are UTF-8 in whole characters, so are the deltas.
  ReplyDelta feed(std::string_view text);
  /// The reply is over. Nothing may be fed afterwards.
  ReplyDelta finish();

 private:
  enum class State { start, reasoning, content, call };

  /// A call whose end has not been found, by offsets into text_.
  struct OpenCall {
    std::size_t scanned = 0;      // up to here its body has been looked at
    std::size_t first_close = 0;  // end of the first </tool_call>; 0: none yet
    std::size_t n_closes = 0;     // that were taken for part of a value
    bool is_in_string = false;    // Hermes: a JSON string is open
    bool is_escaped = false;      // Hermes: after a backslash in one
    bool is_broken = false;       // Hermes: cannot become JSON any more
    bool is_in_value = false;     // Qwen: no </parameter> after the last <parameter=
  };

  void run(bool is_over);
  bool step(bool is_over);
  bool step_start(bool is_over);
  bool step_reasoning(bool is_over);
  bool step_content(bool is_over);
  bool step_call(bool is_over);
  void scan_call(std::size_t end);
  bool take_call(std::size_t body_end, std::size_t next, bool must_be_closed);
  void refuse_call(std::size_t next);
  void take_spaces();
  [[nodiscard]] std::size_t n_unfinished() const;

  void add_reasoning(std::string_view text);
  void add_content(std::string_view text);
  [[nodiscard]] std::string_view rest() const { return std::string_view(text_).substr(at_); }

  ReplyFormat format_;
  std::vector<Json> tools_;
  State state_;
  std::string text_;    // what was fed and may still be needed
  std::size_t at_ = 0;  // up to here text_ is done with
  OpenCall call_;
  ReplyDelta delta_;
  std::string spaces_;          // at the end of the reasoning or the content: kept only when something follows
  bool may_open_think_ = true;  // no visible character of the reasoning yet, no <think> dropped
  bool has_reasoning_ = false;
  bool has_content_ = false;
  bool has_call_ = false;
  bool drops_leading_spaces_ = false;  // of the content: reasoning or a call came before
};

}  // namespace kalibri::chat
