#include "reference/json.hpp"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <vector>

#include "reference/error.hpp"

namespace kalibri::reference {

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> open_objects;  // the keys seen in each object that is not yet closed
  const auto refuse_second_key = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !open_objects.back().insert(parsed.get<std::string>()).second) {
      throw Error(fmt::format("{}: key {} occurs twice in one object", where, shown(parsed)));
    }
    return true;
  };
  try {
    return Json::parse(text, refuse_second_key);
  } catch (const Json::exception& error) {
    throw Error(fmt::format("{}: is no valid JSON: {}", where, error.what()));
  }
}

std::optional<std::int64_t> as_count(const nlohmann::json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  const auto count = value.get<std::int64_t>();
  return count < 0 ? std::nullopt : std::optional(count);
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMaxLength = 120;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxLength) text = text.substr(0, kMaxLength) + " …";
  return text;
}

}  // namespace kalibri::reference
