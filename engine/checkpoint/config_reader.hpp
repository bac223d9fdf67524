// Reads the keys of a config.json object one by one: each must be there and of its type, each error names file and key,
// and what nobody asked for can be listed. It knows no model family.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kalibri::checkpoint {

class ConfigReader {
 public:
  /// `object` must outlive the reader; `prefix` ("rope_parameters.") goes before keys in messages and lists.
  /// Throws Error(config) when it is no object.
  ConfigReader(const nlohmann::json& object, std::string where, std::string prefix = {});

  /// Whether the key is there and not null.
  [[nodiscard]] bool has(std::string_view key) const;

  // All of these throw Error(config) when the key is missing, of another type, or outside what is said.

  const nlohmann::json& value(std::string_view key);
  /// A whole number in [least, most].
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most);
  /// A finite number.
  double number(std::string_view key);
  std::vector<std::string> strings(std::string_view key);
  /// The value must equal `wanted`; `why` says what another value would ask for.
  void must_be(std::string_view key, const nlohmann::json& wanted, std::string_view why);

  /// Keys that are known and shape no number.
  void ignore(std::initializer_list<std::string_view> keys);
  /// Keys of the object that were neither read nor ignored.
  [[nodiscard]] std::vector<std::string> unknown_keys() const;

  [[noreturn]] void fail(std::string_view key, std::string_view text) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace kalibri::checkpoint
