// Whether a checkpoint's own chat template is the one that the renderer was written after: there is no template engine,
// so another template would silently not be followed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/text/chat/conversation.hpp"

namespace kalibri::chat {

/// SHA-256 of the official template that render follows.
std::string known_template_sha256(Family family);

/// The chat template of a checkpoint's directory: chat_template.jinja, else member chat_template of
/// tokenizer_config.json (a string, or a list of {"name", "template"} of which "default" counts); nothing when it has
/// none. Throws Error(file | format) naming the file.
std::optional<std::string> find_template(const std::filesystem::path& directory);

/// Nothing when the directory's template has the digest `known_sha256` or there is none; else what to tell, with both
/// digests.
std::optional<std::string> template_difference(const std::filesystem::path& directory, const std::string& known_sha256);

}  // namespace kalibri::chat
