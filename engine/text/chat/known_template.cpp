#include "engine/text/chat/known_template.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/base/sha256.hpp"
#include "engine/text/chat/json.hpp"

namespace kalibri::chat {

namespace {

constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

std::string read(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.bytes().size() > kMaxBytes) {
    throw Error(ErrorCode::format, fmt::format("{}: more than {} bytes (16 MiB)", path.string(), kMaxBytes));
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

std::string known_template_sha256(Family family) {
  return family == Family::kolibri1 ? "9ba35d4bd6baa26b66aa75d03a922dfee98b16bb1fa37481b195d247267b0f97"
                                    : "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041";
}

std::optional<std::string> find_template(const std::filesystem::path& directory) {
  const std::filesystem::path own_file = directory / "chat_template.jinja";
  if (std::filesystem::exists(own_file)) return read(own_file);

  const std::filesystem::path config = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return std::nullopt;
  std::string wrong;
  const auto json = parse_json(read(config), &wrong);
  if (!json) throw Error(ErrorCode::format, fmt::format("{}: no valid JSON: {}", config.string(), wrong));
  const Json* stated = json->find_value("chat_template");
  if (stated == nullptr) return std::nullopt;
  if (stated->is(Json::Kind::string)) return stated->text;
  if (stated->is(Json::Kind::array)) {
    for (const Json& named : stated->items) {
      const Json* name = named.find("name");
      const Json* text = named.find("template");
      if (name != nullptr && name->text == "default" && text != nullptr && text->is(Json::Kind::string)) {
        return text->text;
      }
    }
  }
  throw Error(ErrorCode::format,
              config.string() + ": chat_template: expected a string, or a list with a template named default");
}

std::optional<std::string> template_difference(const std::filesystem::path& directory,
                                               const std::string& known_sha256) {
  const std::optional<std::string> text = find_template(directory);
  if (!text) return std::nullopt;
  const std::string found = sha256(*text);
  if (found == known_sha256) return std::nullopt;
  return fmt::format(
      "{}: its chat template (SHA-256 {}) is not the one that prompts are written after (SHA-256 {}): the model may "
      "have been trained with other prompts",
      directory.string(), found, known_sha256);
}

}  // namespace kalibri::chat
