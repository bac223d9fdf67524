#include "engine/runtime/generation_config.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/checkpoint/json.hpp"

namespace kalibri::runtime {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

class Members {
 public:
  Members(const std::filesystem::path& path, const json& object) : path_(path), object_(object) {}

  void read(const char* key, double& value) const {
    const json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number()) refuse(key, *found, "a number");
    value = found->get<double>();
  }
  void read(const char* key, std::int64_t& value) const {
    const json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number_integer() || found->get<double>() < -1 || found->get<double>() > kLargest) {
      refuse(key, *found, "a whole number from 0 (off, like -1) on");
    }
    value = found->get<std::int64_t>();
  }
  void read(const char* key, bool& value) const {
    const json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) refuse(key, *found, "true or false");
    value = found->get<bool>();
  }

 private:
  static constexpr double kLargest = 0x1p31;

  [[nodiscard]] const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void refuse(const char* key, const json& found, const char* expected) const {
    const std::string shown = checkpoint::printable(found.dump(-1, ' ', true, json::error_handler_t::replace));
    throw Error(ErrorCode::config, fmt::format("{}: {}: found {}, expected {}", path_.string(), key, shown, expected));
  }

  const std::filesystem::path& path_;
  const json& object_;
};

}  // namespace

SamplingOptions recommended_sampling(const std::filesystem::path& directory) {
  SamplingOptions options;
  const std::filesystem::path path = directory / "generation_config.json";
  if (!std::filesystem::exists(path)) return options;
  const MappedFile file(path);
  if (file.bytes().size() > kMaxBytes) {
    throw Error(ErrorCode::format, fmt::format("{}: more than {} bytes (16 MiB)", path.string(), kMaxBytes));
  }
  const json object = checkpoint::parse_json(file.bytes(), path);
  if (!object.is_object()) throw Error(ErrorCode::format, path.string() + ": no JSON object");

  const Members members(path, object);
  bool do_sample = true;
  members.read("do_sample", do_sample);
  members.read("temperature", options.temperature);
  members.read("top_k", options.top_k);
  members.read("top_p", options.top_p);
  members.read("min_p", options.min_p);
  members.read("repetition_penalty", options.repetition_penalty);
  if (options.top_k < 0) options.top_k = 0;
  try {
    validate(options, 0);
  } catch (const Error& error) {
    throw Error(ErrorCode::config, path.string() + ": " + error.what());
  }
  if (!do_sample) options.temperature = 0;
  return options;
}

}  // namespace kalibri::runtime
