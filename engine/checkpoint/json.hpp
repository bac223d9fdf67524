// Strict reading of the JSON files of a checkpoint: what nlohmann's parser lets pass silently (a key given twice, any
// depth of nesting) is refused. Also how names from a file are shown in messages.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace kalibri::checkpoint {

/// Parses `bytes`; `path` names the file in messages. Throws Error(format): no JSON, nested deeper than 32, a key twice
/// in one object.
nlohmann::json parse_json(std::span<const std::byte> bytes, const std::filesystem::path& path);

/// A name from a file, fit for a message: control characters become '?', long names are cut.
std::string printable(std::string_view name);

}  // namespace kalibri::checkpoint
