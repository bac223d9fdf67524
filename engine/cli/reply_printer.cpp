#include "engine/cli/reply_printer.hpp"

#include <ostream>

namespace kalibri::cli {

std::string for_terminal(std::string_view text) {
  std::string harmless;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_c1 = byte == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 to U+009F
    if (is_c1 || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      harmless += '?';
      if (is_c1) ++i;
    } else {
      harmless += text[i];
    }
  }
  return harmless;
}

ReplyPrinter::~ReplyPrinter() {
  if (is_terminal_ && part_ == Part::reasoning) out_ << "\033[0m\n" << std::flush;
}

const Reply& ReplyPrinter::finish() {
  print(parser_.finish());
  begin(Part::none);
  out_ << std::flush;
  return reply_;
}

void ReplyPrinter::print(const chat::ReplyDelta& delta) {
  if (!delta.reasoning.empty()) {
    begin(Part::reasoning);
    write(delta.reasoning);
    reply_.reasoning += delta.reasoning;
  }
  if (!delta.content.empty()) {
    begin(Part::content);
    write(delta.content);
    reply_.content += delta.content;
  }
  for (const chat::ParsedCall& call : delta.tool_calls) {
    begin(Part::call);
    write("tool call: " + call.name + ' ' + call.arguments);
    reply_.tool_calls.push_back(call);
  }
  out_ << std::flush;
}

/// Ends what is being written and begins `part`; of calls each is a part.
void ReplyPrinter::begin(Part part) {
  if (part == part_ && part != Part::call) return;
  if (part_ == Part::reasoning) out_ << (is_terminal_ ? "\033[0m\n\n" : "\n</think>\n\n");
  if (part_ == Part::content || part_ == Part::call) out_ << '\n';
  if (part == Part::reasoning) out_ << (is_terminal_ ? "\033[2m" : "<think>\n");
  part_ = part;
}

void ReplyPrinter::write(std::string_view text) { out_ << (is_terminal_ ? for_terminal(text) : std::string(text)); }

}  // namespace kalibri::cli
