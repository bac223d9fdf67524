#include "engine/text/chat/reply_parser.hpp"

#include <algorithm>
#include <utility>

#include "engine/text/chat/strip.hpp"

namespace kalibri::chat {

namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";

// A value may hold "</tool_call>", but not so often that looking for its end costs the square of the reply's length.
constexpr std::size_t kMaxEndsInValues = 256;

/// Length of the longest tail of `text` that `marker` could go on from.
std::size_t open_tail(std::string_view text, std::string_view marker) {
  for (std::size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.ends_with(marker.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

ReplyParser::ReplyParser(ReplyFormat format, ReplyStart start, std::vector<Json> tools)
    : format_(format),
      tools_(std::move(tools)),
      state_(start == ReplyStart::anywhere    ? State::start
             : start == ReplyStart::reasoning ? State::reasoning
                                              : State::content) {}

ReplyDelta ReplyParser::feed(std::string_view text) {
  text_ += text;
  run(false);
  return std::exchange(delta_, {});
}

ReplyDelta ReplyParser::finish() {
  run(true);
  const bool drops_spaces = state_ == State::reasoning || has_call_ || (drops_leading_spaces_ && !has_content_);
  if (!drops_spaces) delta_.content += spaces_;
  return std::exchange(delta_, {});
}

void ReplyParser::run(bool is_over) {
  while (step(is_over)) {
  }
  text_.erase(0, at_);
  if (state_ == State::call) {
    call_.scanned -= at_;
    if (call_.first_close != 0) call_.first_close -= at_;
  }
  at_ = 0;
}

/// Does what can be decided; whether something was, so that there may be more.
bool ReplyParser::step(bool is_over) {
  switch (state_) {
    case State::start:
      return step_start(is_over);
    case State::reasoning:
      return step_reasoning(is_over);
    case State::content:
      return step_content(is_over);
    case State::call:
      return step_call(is_over);
  }
  return false;
}

bool ReplyParser::step_start(bool is_over) {
  take_spaces();
  if (!is_over && kThink.starts_with(rest())) return false;
  if (rest().starts_with(kThink)) {
    at_ += kThink.size();
    spaces_.clear();
    state_ = State::reasoning;
  } else {
    state_ = State::content;
  }
  return true;
}

bool ReplyParser::step_reasoning(bool is_over) {
  if (may_open_think_) {
    take_spaces();
    if (!is_over && kThink.starts_with(rest())) return false;
    if (rest().starts_with(kThink)) at_ += kThink.size();
    may_open_think_ = false;
  }
  const std::size_t close = rest().find(kThinkEnd);
  const std::size_t call = tools_.empty() ? std::string_view::npos : rest().find(kCall);
  const std::size_t end = std::min(close, call);
  if (end != std::string_view::npos) {
    add_reasoning(rest().substr(0, end));
    at_ += end;
    spaces_.clear();
    drops_leading_spaces_ = true;
    state_ = State::content;
    if (end == close) at_ += kThinkEnd.size();
    return true;
  }
  std::size_t n_held = is_over ? 0 : open_tail(rest(), kThinkEnd);
  if (!is_over && !tools_.empty()) n_held = std::max(n_held, open_tail(rest(), kCall));
  add_reasoning(rest().substr(0, rest().size() - n_held));
  at_ = text_.size() - n_held;
  return false;
}

bool ReplyParser::step_content(bool is_over) {
  const std::size_t call = tools_.empty() ? std::string_view::npos : rest().find(kCall);
  if (call != std::string_view::npos) {
    add_content(rest().substr(0, call));
    at_ += call;
    call_ = {.scanned = at_ + kCall.size()};
    state_ = State::call;
    return true;
  }
  const std::size_t n_held = is_over || tools_.empty() ? 0 : open_tail(rest(), kCall);
  add_content(rest().substr(0, rest().size() - n_held));
  at_ = text_.size() - n_held;
  return false;
}

void ReplyParser::take_spaces() {
  const std::size_t n_spaces = rest().size() - strip_front(rest(), kSpaces).size();
  spaces_ += rest().substr(0, n_spaces);
  at_ += n_spaces;
}

/// A close tag ends the call if the body parses there. If not, the tag may be part of a value that is still open, and
/// the search goes on; otherwise everything through the first close tag is content, and what follows is read again.
bool ReplyParser::step_call(bool is_over) {
  for (;;) {
    const std::size_t close = text_.find(kCallEnd, call_.scanned);
    const bool has_close = close != std::string::npos;
    scan_call(has_close ? close : text_.size() - (is_over ? 0 : n_unfinished()));
    if (!has_close) break;
    const std::size_t next = close + kCallEnd.size();
    if (call_.first_close == 0) call_.first_close = next;
    if (take_call(close, next, false)) return true;
    if (!(call_.is_in_string || call_.is_in_value) || call_.is_broken || ++call_.n_closes > kMaxEndsInValues) {
      refuse_call(call_.first_close);
      return true;
    }
    call_.scanned = next;
  }
  if (call_.first_close != 0 && (is_over || call_.is_broken)) {
    refuse_call(call_.first_close);
    return true;
  }
  if (!is_over) return false;
  if (!take_call(text_.size(), text_.size(), true)) refuse_call(text_.size());
  return true;
}

/// Length of the tail that a tag of a call could go on from: it is not scanned before the tag is whole.
std::size_t ReplyParser::n_unfinished() const {
  const std::size_t n = open_tail(text_, kCallEnd);
  return format_ == ReplyFormat::hermes ? n
                                        : std::max({n, open_tail(text_, kParameter), open_tail(text_, kParameterEnd)});
}

/// Keeps up, over the body's text up to `end`, what tells whether a value is open.
void ReplyParser::scan_call(std::size_t end) {
  if (end <= call_.scanned) return;
  const std::string_view part = std::string_view(text_).substr(call_.scanned, end - call_.scanned);
  call_.scanned = end;
  if (format_ == ReplyFormat::qwen_xml) {
    const std::size_t opened = part.rfind(kParameter), closed = part.rfind(kParameterEnd);
    if (opened != std::string_view::npos || closed != std::string_view::npos) {
      call_.is_in_value = closed == std::string_view::npos || (opened != std::string_view::npos && opened > closed);
    }
    return;
  }
  for (const char c : part) {
    if (call_.is_escaped) {
      call_.is_escaped = false;
    } else if (c == '"') {
      call_.is_in_string = !call_.is_in_string;
    } else if (call_.is_in_string) {
      call_.is_escaped = c == '\\';
    } else if (std::string_view(" \t\r\n{}[]:,+-.0123456789Eaeflnrstu").find(c) == std::string_view::npos) {
      call_.is_broken = true;  // nothing that JSON has outside its strings
    }
  }
}

/// Takes the call whose body ends at `body_end` and goes on at `next`; false when the body is no call.
bool ReplyParser::take_call(std::size_t body_end, std::size_t next, bool must_be_closed) {
  const std::string_view body = rest().substr(kCall.size(), body_end - at_ - kCall.size());
  ParsedCall parsed;
  if (format_ == ReplyFormat::hermes) {
    if (call_.is_in_string || call_.is_broken) return false;
    std::optional<ParsedCall> call = parse_hermes_call(body);
    if (!call) return false;
    parsed = std::move(*call);
  } else {
    const bool ends_function = strip_back(body, kSpaces).ends_with("</function>");
    if ((call_.is_in_value || must_be_closed) && !ends_function) return false;
    std::optional<XmlCall> call = parse_xml_call(body, tools_);
    if (!call || (must_be_closed && !call->is_closed)) return false;
    parsed = std::move(call->call);
  }
  delta_.tool_calls.push_back(std::move(parsed));
  spaces_.clear();
  has_call_ = true;
  drops_leading_spaces_ = true;
  at_ = next;
  state_ = State::content;
  return true;
}

void ReplyParser::refuse_call(std::size_t next) {
  add_content(rest().substr(0, next - at_));
  at_ = next;
  state_ = State::content;
}

/// Reasoning without the whitespace at its ends.
void ReplyParser::add_reasoning(std::string_view text) {
  const std::string_view visible = strip_back(text, kSpaces);
  if (!visible.empty()) {
    const bool is_first = !std::exchange(has_reasoning_, true);
    if (!is_first) delta_.reasoning += spaces_;
    delta_.reasoning += is_first ? strip_front(visible, kSpaces) : visible;
    spaces_.clear();
  }
  spaces_ += text.substr(visible.size());
}

void ReplyParser::add_content(std::string_view text) {
  const std::string_view visible = strip_back(text, kSpaces);
  if (!visible.empty()) {
    const bool drops = drops_leading_spaces_ && !has_content_;
    if (!drops) delta_.content += spaces_;
    delta_.content += drops ? strip_front(visible, kSpaces) : visible;
    has_content_ = true;
    spaces_.clear();
  }
  spaces_ += text.substr(visible.size());
}

}  // namespace kalibri::chat
