#include "engine/cli/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.hpp"
#include "engine/text/unicode.hpp"

namespace kalibri::cli {

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::input,
              fmt::format("{}: {}; expected {{\"name\": [token ids, ...], ...}}", path.string(), what));
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

bool is_prompt_name(std::string_view name) {
  const bool has_controls =
      std::any_of(name.begin(), name.end(), [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; });
  return !name.empty() && name != "." && name.find('/') == name.npos && !has_controls && text::is_utf8(name);
}

std::vector<Prompt> read_token_file(const std::filesystem::path& path) {
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw Error(ErrorCode::file, fmt::format("{}: is no regular file; --tokens names a JSON file", path.string()));
  }
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorCode::file, fmt::format("{}: cannot be opened; --tokens names a JSON file", path.string()));
  nlohmann::ordered_json json;
  std::set<std::string> names, keys;  // keys of the prompt at hand
  const auto callback = [&](int depth, nlohmann::ordered_json::parse_event_t event, nlohmann::ordered_json& parsed) {
    if (depth == 1 && event == nlohmann::ordered_json::parse_event_t::key &&
        !names.insert(parsed.get<std::string>()).second) {
      refuse(path, fmt::format("prompt '{}' appears twice", parsed.get<std::string>()));
    }
    if (depth == 1) keys.clear();
    if (depth == 2 && event == nlohmann::ordered_json::parse_event_t::key &&
        !keys.insert(parsed.get<std::string>()).second) {
      refuse(path, fmt::format("key '{}' of a prompt is given twice", parsed.get<std::string>()));
    }
    if (depth > 3) refuse(path, "nested deeper than names and lists of ids");
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
  for (const auto& [name, value] : json.items()) {
    if (!is_prompt_name(name)) {
      refuse(path,
             fmt::format("prompt '{}': a name is not empty, not '.', and has no '/' and no control characters", name));
    }
    const bool has_text = value.is_object() && value.size() == 2 && value.contains("tokens") &&
                          value.contains("text_sha256") && value["text_sha256"].is_string();
    const auto& ids = has_text ? value["tokens"] : value;
    if (!ids.is_array()) refuse(path, fmt::format("prompt '{}' is not a list", name));
    Prompt prompt{name, {}, has_text ? value["text_sha256"].get<std::string>() : ""};
    if (has_text && !is_sha256(prompt.text_sha256)) {
      refuse(path,
             fmt::format("prompt '{}': text_sha256: '{}' is no SHA-256 in lower-case hex", name, prompt.text_sha256));
    }
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
  if (prompts.empty()) throw Error(ErrorCode::input, "no prompts: name at least one with --tokens or --prompts");
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
