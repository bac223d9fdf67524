// The types that a tool's JSON schema declares for a parameter, and the JSON that a bare text becomes by them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat/json.hpp"

namespace kalibri::chat {

/// The schema of the arguments of function `name`; nullptr when no tool has that name or it declares none.
const Json* find_parameters(const std::vector<Json>& tools, std::string_view name);

/// The schema of parameter `key` in `parameters` (nullptr: unknown); nullptr when it is not declared.
const Json* find_parameter(const Json* parameters, std::string_view key);

/// The JSON text of a bare `value` by the schema of parameter `key`: the first declared type that it fits, in the order
/// of declaration; a string when nothing fits or nothing is declared. Local $ref, anyOf, oneOf, a single allOf, enum
/// and nullable are followed.
std::string typed_value(std::string_view value, const Json* parameters, std::string_view key);

}  // namespace kalibri::chat
