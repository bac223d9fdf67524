#include "engine/checkpoint/json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "engine/base/error.hpp"

namespace kalibri::checkpoint {

namespace {

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxShown = 160;

}  // namespace

nlohmann::json parse_json(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  using nlohmann::json;
  std::vector<std::set<std::string>> open_keys;  // the keys seen in each object that is open; arrays keep theirs empty
  const auto fail = [&](const std::string& text) {
    throw Error(ErrorCode::format, fmt::format("{}: {}", path.string(), text));
  };
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (open_keys.size() == kMaxDepth) fail(fmt::format("nested deeper than {} levels", kMaxDepth));
        open_keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        open_keys.pop_back();
        break;
      case json::parse_event_t::key:
        if (!open_keys.back().insert(value.get<std::string>()).second) {
          fail(fmt::format("key '{}' is given twice", printable(value.get_ref<const std::string&>())));
        }
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    const auto* begin = reinterpret_cast<const char*>(bytes.data());
    return json::parse(begin, begin + bytes.size(), watch);
  } catch (const json::parse_error& error) {
    throw Error(ErrorCode::format, fmt::format("{}: no valid JSON (byte {})", path.string(), error.byte));
  } catch (const json::out_of_range& error) {
    throw Error(ErrorCode::format, fmt::format("{}: a number is out of range", path.string()));
  }
}

std::string printable(std::string_view name) {
  std::string text(name.substr(0, kMaxShown));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return name.size() > kMaxShown ? text + "..." : text;
}

}  // namespace kalibri::checkpoint
