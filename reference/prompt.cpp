#include "reference/prompt.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/error.hpp"
#include "reference/json.hpp"
#include "reference/mapped_file.hpp"

namespace kalibri::reference {
namespace {

std::vector<std::int32_t> read_tokens(const nlohmann::json& list, const std::string& where, std::int64_t vocab_size,
                                      std::int64_t max_tokens) {
  if (!list.is_array()) throw Error(fmt::format("{}: is {}, expected a list of token ids", where, shown(list)));
  if (list.empty()) throw Error(where + ": is empty: a prompt has at least one token");
  if (list.size() > static_cast<std::size_t>(max_tokens)) {
    throw Error(
        fmt::format("{}: {} tokens, but config.json's max_position_embeddings is {}", where, list.size(), max_tokens));
  }
  std::vector<std::int32_t> tokens;
  for (const nlohmann::json& element : list) {
    const std::optional<std::int64_t> id = as_count(element);
    if (!id || *id >= vocab_size) {
      throw Error(fmt::format("{}: entry {} is {}, expected a token id from 0 to {} (config.json's vocab_size is {})",
                              where, tokens.size(), shown(element), vocab_size - 1, vocab_size));
    }
    tokens.push_back(static_cast<std::int32_t>(*id));
  }
  return tokens;
}

std::string read_sha256(const nlohmann::json& text, const std::string& where) {
  const std::string* hex = text.get_ptr<const std::string*>();
  if (hex == nullptr || hex->size() != 64 || hex->find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw Error(fmt::format("{}: text_sha256 is {}, expected 64 lower-case hex digits", where, shown(text)));
  }
  return *hex;
}

}  // namespace

std::vector<Prompt> read_prompts(const std::filesystem::path& path, std::int64_t vocab_size, std::int64_t max_tokens) {
  const nlohmann::json file = parse_json(read_text(path), path.string());
  if (!file.is_object() || file.empty()) {
    throw Error(fmt::format(R"({}: expected prompts as {{"name": [ids…], …}}, found {})", path.string(), shown(file)));
  }
  std::vector<Prompt> prompts;
  std::int64_t n_rows = 0;
  for (const auto& [name, entry] : file.items()) {
    const std::string where = fmt::format("{}: prompt '{}'", path.string(), name);
    const bool has_controls = std::ranges::any_of(name, [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; });
    if (name.empty() || name == "." || name.find('/') != std::string::npos || has_controls) {
      throw Error(fmt::format("{}: prompt {}: a name is not empty, not '.', and has no '/' and no control characters",
                              path.string(), shown(name)));
    }
    prompts.push_back({name, {}, {}, n_rows});
    if (entry.is_object()) {
      if (entry.size() != 2 || !entry.contains("tokens") || !entry.contains("text_sha256")) {
        throw Error(fmt::format(R"({}: is {}, expected [ids…] or {{"tokens": [ids…], "text_sha256": "…"}})", where,
                                shown(entry)));
      }
      prompts.back().text_sha256 = read_sha256(entry["text_sha256"], where);
    }
    const nlohmann::json& list = entry.is_object() ? entry["tokens"] : entry;
    prompts.back().tokens = read_tokens(list, where, vocab_size, max_tokens);
    n_rows = prompts.back().end_row();
  }
  return prompts;
}

std::int64_t count_rows(std::span<const Prompt> prompts) { return prompts.empty() ? 0 : prompts.back().end_row(); }

}  // namespace kalibri::reference
