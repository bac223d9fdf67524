#include "reference/config_reader.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "reference/error.hpp"
#include "reference/json.hpp"

namespace kalibri::reference {

ConfigReader::ConfigReader(const Checkpoint& checkpoint)
    : ConfigReader(checkpoint.config(), (checkpoint.directory() / "config.json").string()) {}

const nlohmann::json& ConfigReader::value(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) throw Error(fmt::format("{}: has no '{}', which this model needs", where_, key));
  return *found;
}

void ConfigReader::refuse(const char* key, const std::string& why) const {
  throw Error(fmt::format("{}: '{}' is {}: {}", where_, key, shown(value(key)), why));
}

bool ConfigReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

ConfigReader ConfigReader::object(const char* key) const {
  if (!value(key).is_object()) refuse(key, "expected an object");
  return {value(key), fmt::format("{}: {}", where_, key)};
}

std::int64_t ConfigReader::size(const char* key) const {
  const std::optional<std::int64_t> count = as_count(value(key));
  if (!count || *count < 1 || *count > std::numeric_limits<std::int32_t>::max()) {
    refuse(key, "expected an integer from 1 to 2147483647");
  }
  return *count;
}

std::int64_t ConfigReader::count(const char* key) const {
  const std::optional<std::int64_t> count = as_count(value(key));
  if (!count) refuse(key, "expected an integer of at least 0");
  return *count;
}

std::vector<std::int64_t> ConfigReader::counts(const char* key) const {
  if (!value(key).is_array()) return {count(key)};
  std::vector<std::int64_t> counts;
  for (const nlohmann::json& element : value(key)) {
    const std::optional<std::int64_t> count = as_count(element);
    if (!count) refuse(key, "expected integers of at least 0");
    counts.push_back(*count);
  }
  return counts;
}

double ConfigReader::positive(const char* key) const {
  const double number = value(key).is_number() ? value(key).get<double>() : 0.0;
  if (!(number > 0.0) || !std::isfinite(number)) refuse(key, "expected a finite number above 0");
  return number;
}

bool ConfigReader::flag(const char* key) const {
  if (!value(key).is_boolean()) refuse(key, "expected true or false");
  return value(key).get<bool>();
}

std::string ConfigReader::text(const char* key) const {
  if (!value(key).is_string()) refuse(key, "expected a text");
  return value(key).get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const char* key) const {
  const nlohmann::json& list = value(key);
  const auto is_text = [](const nlohmann::json& element) { return element.is_string(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_text)) refuse(key, "expected a list of texts");
  return list.get<std::vector<std::string>>();
}

void ConfigReader::expect(const char* key, const nlohmann::json& expected) const {
  if (value(key) != expected) refuse(key, fmt::format("only {} is implemented", shown(expected)));
}

}  // namespace kalibri::reference
