#include "engine/cli/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::input,
              fmt::format("{}: {}; expected {{\"name\": [token ids, ...], ...}}", path.string(), what));
}

}  // namespace

std::vector<Prompt> read_token_file(const std::filesystem::path& path) {
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw Error(ErrorCode::file, fmt::format("{}: is no regular file; --tokens names a JSON file", path.string()));
  }
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorCode::file, fmt::format("{}: cannot be opened; --tokens names a JSON file", path.string()));
  nlohmann::ordered_json json;
  std::set<std::string> names;
  const auto callback = [&](int depth, nlohmann::ordered_json::parse_event_t event, nlohmann::ordered_json& parsed) {
    if (depth == 1 && event == nlohmann::ordered_json::parse_event_t::key &&
        !names.insert(parsed.get<std::string>()).second) {
      refuse(path, fmt::format("prompt '{}' appears twice", parsed.get<std::string>()));
    }
    if (depth > 2) refuse(path, "nested deeper than names and lists of ids");
    return true;
  };
  try {
    json = nlohmann::ordered_json::parse(file, callback);
  } catch (const nlohmann::ordered_json::exception& error) {
    refuse(path, fmt::format("is not JSON ({})", error.what()));
  }
  if (!json.is_object()) refuse(path, "is not a JSON object");
  if (json.empty()) refuse(path, "holds no prompts");
  std::vector<Prompt> prompts;
  for (const auto& [name, ids] : json.items()) {
    const bool has_controls =
        std::any_of(name.begin(), name.end(), [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; });
    if (name.empty() || name == "." || name.find('/') != name.npos || has_controls) {
      refuse(path,
             fmt::format("prompt '{}': a name is not empty, not '.', and has no '/' and no control characters", name));
    }
    if (!ids.is_array()) refuse(path, fmt::format("prompt '{}' is not a list", name));
    Prompt prompt{name, {}, {}};
    for (const auto& id : ids) {
      const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() <= 0x7fffffff;
      if (!fits)
        refuse(path, fmt::format("prompt '{}', index {}: {} is no token id", name, prompt.tokens.size(), id.dump()));
      prompt.tokens.push_back(id.get<std::int32_t>());
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

void check_prompts(const std::vector<Prompt>& prompts, const model::ModelInfo& info) {
  if (prompts.empty()) throw Error(ErrorCode::input, "no prompts: --tokens names a file with at least one");
  for (const Prompt& prompt : prompts) {
    const auto n = static_cast<std::int64_t>(prompt.tokens.size());
    if (n == 0)
      throw Error(ErrorCode::input, fmt::format("prompt '{}': is empty; a prompt has at least one token", prompt.name));
    if (n > info.max_positions) {
      throw Error(ErrorCode::input, fmt::format("prompt '{}': {} tokens, expected at most {} (max_position_embeddings)",
                                                prompt.name, n, info.max_positions));
    }
    for (std::size_t i = 0; i < prompt.tokens.size(); ++i) {
      if (prompt.tokens[i] < 0 || prompt.tokens[i] >= info.vocab_size) {
        throw Error(ErrorCode::input, fmt::format("prompt '{}', index {}: token id {}, expected 0 to {} (vocab_size)",
                                                  prompt.name, i, prompt.tokens[i], info.vocab_size - 1));
      }
    }
  }
}

}  // namespace kalibri::cli
