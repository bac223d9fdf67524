#include "engine/checkpoint/config_reader.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/checkpoint/json.hpp"

namespace kalibri::checkpoint {

namespace {

/// A value as it stands in the file, cut when long.
std::string shown(const nlohmann::json& value) {
  return printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string where, std::string prefix)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {
  if (object_.is_object()) return;
  const std::string name = prefix_.substr(0, prefix_.find_last_of('.'));
  throw Error(ErrorCode::config, fmt::format("{}: {}{}is no object", where_, name, name.empty() ? "" : ": "));
}

void ConfigReader::fail(std::string_view key, std::string_view text) const {
  throw Error(ErrorCode::config, fmt::format("{}: {}{}: {}", where_, prefix_, key, text));
}

bool ConfigReader::has(std::string_view key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const nlohmann::json& ConfigReader::value(std::string_view key) {
  const auto found = object_.find(key);
  if (found == object_.end()) fail(key, "missing; this model cannot be computed without it");
  known_.emplace(key);
  return *found;
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t least, std::int64_t most) {
  const nlohmann::json& json = value(key);
  if (!json.is_number_integer()) fail(key, fmt::format("{}, expected a whole number", shown(json)));
  const bool too_large = json.is_number_unsigned() && json.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  if (too_large || json.get<std::int64_t>() < least || json.get<std::int64_t>() > most) {
    fail(key, fmt::format("{}, expected {} to {}", shown(json), least, most));
  }
  return json.get<std::int64_t>();
}

double ConfigReader::number(std::string_view key) {
  const nlohmann::json& json = value(key);
  if (!json.is_number() || !std::isfinite(json.get<double>())) {
    fail(key, fmt::format("{}, expected a finite number", shown(json)));
  }
  return json.get<double>();
}

std::vector<std::string> ConfigReader::strings(std::string_view key) {
  const nlohmann::json& json = value(key);
  std::vector<std::string> list;
  if (!json.is_array()) fail(key, fmt::format("{}, expected a list of strings", shown(json)));
  for (const nlohmann::json& entry : json) {
    if (!entry.is_string()) fail(key, fmt::format("{} in a list of strings", shown(entry)));
    list.push_back(entry.get<std::string>());
  }
  return list;
}

void ConfigReader::must_be(std::string_view key, const nlohmann::json& wanted, std::string_view why) {
  const nlohmann::json& json = value(key);
  if (json.type() != wanted.type() || json != wanted) {
    fail(key, fmt::format("{}, expected {} ({})", shown(json), shown(wanted), why));
  }
}

void ConfigReader::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

std::vector<std::string> ConfigReader::unknown_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    if (!known_.contains(key)) keys.push_back(prefix_ + printable(key));
  }
  return keys;
}

}  // namespace kalibri::checkpoint
