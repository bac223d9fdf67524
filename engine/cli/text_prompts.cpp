#include "engine/cli/text_prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/base/sha256.hpp"
#include "engine/cli/checkpoint_tokenizer.hpp"
#include "engine/text/printable.hpp"
#include "engine/text/tokenizer.hpp"
#include "engine/text/unicode.hpp"

namespace kalibri::cli {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::input, fmt::format("{}: {}", file, what));
}

}  // namespace

std::string read_text_file(const std::string& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    throw Error(ErrorCode::file, fmt::format("{}: is {}, expected a text file", file,
                                             fs::exists(file, error) ? "no regular file" : "not there"));
  }
  if (const auto n_bytes = fs::file_size(file); n_bytes > text::Tokenizer::kMaxTextBytes) {
    refuse(file, fmt::format("{} bytes, expected at most {}", n_bytes, text::Tokenizer::kMaxTextBytes));
  }
  const MappedFile mapped(file);
  std::string bytes(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  if (bytes.empty()) refuse(file, "is empty; a prompt has at least one character");
  if (!text::is_utf8(bytes)) {  // U+FFFD in its place would be another text
    const std::string mended = text::to_utf8(bytes);
    const auto at = std::mismatch(bytes.begin(), bytes.end(), mended.begin(), mended.end());
    refuse(file, fmt::format("is no UTF-8 (byte {}); convert it first", at.first - bytes.begin()));
  }
  return bytes;
}

std::vector<NamedText> read_text_files(const std::vector<std::string>& files) {
  std::vector<NamedText> texts;
  std::map<std::string, std::string> file_of;  // by prompt
  for (const std::string& file : files) {
    const std::string name = fs::path(file).stem().string();
    std::string bytes = read_text_file(file);
    if (!is_prompt_name(name)) {
      refuse(text::printable(file), "a prompt is called what its file is, and this name is none; rename the file");
    }
    const auto [first, is_new] = file_of.emplace(name, file);
    if (!is_new) refuse(file, fmt::format("is prompt '{}' like {}; rename one of them", name, first->second));
    texts.push_back({name, std::move(bytes)});
  }
  return texts;
}

std::vector<Prompt> tokenize_texts(const std::vector<NamedText>& texts, const fs::path& checkpoint,
                                   const model::ModelInfo& info, std::ostream* notes) {
  const text::Tokenizer tokenizer = load_tokenizer(checkpoint, info, ", or give ids with --tokens", notes);
  std::vector<Prompt> prompts;
  for (const NamedText& text : texts) prompts.push_back({text.name, tokenizer.encode(text.text), sha256(text.text)});
  return prompts;
}

std::vector<Prompt> read_text_prompts(const std::vector<std::string>& files, const fs::path& checkpoint,
                                      const model::ModelInfo& info, std::ostream* notes) {
  return tokenize_texts(read_text_files(files), checkpoint, info, notes);
}

}  // namespace kalibri::cli
