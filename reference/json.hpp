// JSON as the reference reads it: no key twice in one object (the parser would silently keep the last), and numbers
// that are what they claim to be.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kalibri::reference {

/// Throws Error, beginning with `where`, when `text` is no JSON or names a key twice in one object.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// `value` as an integer in [0, 2^63), or nothing.
std::optional<std::int64_t> as_count(const nlohmann::json& value);

/// `value` for a message, cut to a readable length.
std::string shown(const nlohmann::json& value);

}  // namespace kalibri::reference
