#include "engine/text/stop_ids.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/text/printable.hpp"

namespace kalibri::text {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::config, fmt::format("{}: {}", path.string(), what));
}

/// Member `key` of a file's object; null when there is no such file or member.
json member_of(const std::filesystem::path& path, const char* key) {
  if (!std::filesystem::exists(path)) return nullptr;
  const MappedFile file(path);
  if (file.bytes().size() > kMaxBytes) refuse(path, fmt::format("more than {} bytes (16 MiB)", kMaxBytes));
  const auto watch = [&](int depth, json::parse_event_t, const json&) {
    if (depth > kMaxDepth) refuse(path, fmt::format("nested deeper than {} levels", kMaxDepth));
    return true;
  };
  try {
    const auto* begin = reinterpret_cast<const char*>(file.bytes().data());
    const json object = json::parse(begin, begin + file.bytes().size(), watch);
    if (!object.is_object()) refuse(path, "no JSON object");
    return object.value(key, json());
  } catch (const json::parse_error& error) {
    refuse(path, fmt::format("no valid JSON (byte {})", error.byte));
  } catch (const json::out_of_range&) {
    refuse(path, "no valid JSON (a number is out of range)");
  }
}

std::int32_t checked_id(const json& id, const Tokenizer& tokenizer, const std::filesystem::path& path) {
  const bool is_id = id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(tokenizer.n_ids());
  if (!is_id || tokenizer.bytes_of(id.get<std::int32_t>()).empty()) {
    refuse(path, fmt::format("eos_token_id: found {}, expected an id of tokenizer.json (below {}), or a list of them",
                             printable(id.dump()), tokenizer.n_ids()));
  }
  return id.get<std::int32_t>();
}

}  // namespace

std::vector<std::int32_t> stop_ids(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  const std::filesystem::path generation_config = directory / "generation_config.json";
  std::vector<std::int32_t> ids;
  if (const json stated = member_of(generation_config, "eos_token_id"); !stated.is_null()) {
    for (const json& each : stated.is_array() ? stated : json::array({stated})) {
      const std::int32_t id = checked_id(each, tokenizer, generation_config);
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
  }
  if (!ids.empty()) return ids;

  const std::filesystem::path tokenizer_config = directory / "tokenizer_config.json";
  json token = member_of(tokenizer_config, "eos_token");
  if (token.is_object()) token = json(token.value("content", json()));
  if (token.is_null()) {
    refuse(directory,
           "nothing says where a text ends; expected eos_token_id in generation_config.json or eos_token in "
           "tokenizer_config.json");
  }
  const auto id = token.is_string() ? tokenizer.id_of(token.get<std::string>()) : std::nullopt;
  if (!id.has_value()) {
    refuse(tokenizer_config,
           fmt::format("eos_token: found {}, expected a token of tokenizer.json", printable(token.dump())));
  }
  return {*id};
}

}  // namespace kalibri::text
