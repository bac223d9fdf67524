// The prompt of a conversation, byte for byte as the families' official chat templates write it. Hand-written: there is
// no template engine, and the fixed strings are those that the models were trained with.
#pragma once

#include <string>

#include "engine/text/chat/conversation.hpp"

namespace kalibri::chat {

/// Kolibri 1: the system text comes first and nothing is trimmed; reasoning of turns before the last question is
/// dropped unless preserve_thinking; the model opens its thinking itself. Source: chat_template of Aleph-Alpha's
/// Kolibri-1 (SHA-256 9ba35d4b...b0f97). Throws Error(input): a part is no text.
std::string render_kolibri1(const Conversation& conversation);

/// Qwen3.8-Flash-Next: everything is trimmed; the system text comes after the tools; reasoning is kept unless
/// preserve_thinking is false; the prompt opens the thinking. An image is one <|image_pad|>.
/// Source: chat_template.jinja of Qwen3.8-Flash-Next (SHA-256 c3cf9e34...a81041). Throws Error(input) with the
/// template's own words: no question, a later system message, an unknown effort, an image in the system message, an
/// unknown part.
std::string render_qwen4_exp(const Conversation& conversation);

inline std::string render(Family family, const Conversation& conversation) {
  return family == Family::kolibri1 ? render_kolibri1(conversation) : render_qwen4_exp(conversation);
}

}  // namespace kalibri::chat
