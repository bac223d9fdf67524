// Takes architecture values out of config.json: each is asked for by its key, has no default, and is refused when it is
// missing or of the wrong kind.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reference/checkpoint.hpp"

namespace kalibri::reference {

class ConfigReader {
 public:
  /// `object` is config.json or an object in it; `where` begins every message. Both outlive the reader.
  ConfigReader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}
  explicit ConfigReader(const Checkpoint& checkpoint);

  /// Present and not null.
  [[nodiscard]] bool has(const char* key) const;
  /// A reader of the object below `key`. Throws Error.
  [[nodiscard]] ConfigReader object(const char* key) const;
  /// An integer in [1, 2^31). Throws Error.
  [[nodiscard]] std::int64_t size(const char* key) const;
  /// An integer in [0, 2^63). Throws Error.
  [[nodiscard]] std::int64_t count(const char* key) const;
  /// An integer in [0, 2^63), or a list of such. Throws Error.
  [[nodiscard]] std::vector<std::int64_t> counts(const char* key) const;
  /// A finite number above 0. Throws Error.
  [[nodiscard]] double positive(const char* key) const;
  [[nodiscard]] bool flag(const char* key) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] std::vector<std::string> texts(const char* key) const;

  /// Throws Error unless the value of `key` is `expected`, the only one implemented.
  void expect(const char* key, const nlohmann::json& expected) const;
  /// Throws Error: `key` with its value and why it is refused.
  [[noreturn]] void refuse(const char* key, const std::string& why) const;

 private:
  [[nodiscard]] const nlohmann::json& value(const char* key) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace kalibri::reference
