#include "engine/text/tokenizer_file.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.hpp"
#include "engine/text/printable.hpp"
#include "engine/text/tokenizer_json.hpp"

namespace kalibri::text {
namespace {

using nlohmann::json;

struct KnownPattern {
  std::string_view regex;
  SplitPattern pattern;
};

constexpr KnownPattern kKnownPatterns[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::letters},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::letters},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::letters_and_marks},
};

/// A value of the document with its place in the file, for messages.
class Member {
 public:
  Member(const std::filesystem::path& path, std::string name, const json& value)
      : path_(path), name_(std::move(name)), value_(value) {}

  [[noreturn]] void refuse(const std::string& expected) const {
    std::string found = value_.dump();
    throw Error(ErrorCode::format,
                fmt::format("{}: {}: found {}, expected {}", path_.string(), name_, printable(found), expected));
  }

  /// Null when it is missing.
  [[nodiscard]] Member operator[](const std::string& key) const {
    static const json missing;
    if (!value_.is_object()) refuse("an object");
    const auto found = value_.find(key);
    return {path_, name_.empty() ? key : name_ + "." + key, found == value_.end() ? missing : *found};
  }

  [[nodiscard]] std::vector<Member> elements() const {
    if (!value_.is_array()) refuse("a list");
    std::vector<Member> elements;
    for (const json& value : value_) {
      elements.emplace_back(path_, fmt::format("{}[{}]", name_, elements.size()), value);
    }
    return elements;
  }

  [[nodiscard]] bool is_null() const { return value_.is_null(); }
  [[nodiscard]] const json& value() const { return value_; }

  [[nodiscard]] const std::string& text() const {
    if (!value_.is_string()) refuse("a string");
    return value_.get_ref<const std::string&>();
  }
  [[nodiscard]] bool flag() const {
    if (!value_.is_boolean()) refuse("true or false");
    return value_.get<bool>();
  }
  [[nodiscard]] bool flag_or_false() const { return !is_null() && flag(); }

  /// Refuses any value but null and `also`.
  void must_be_null_or(const json& also) const {
    if (!is_null() && value_ != also) refuse(also.is_null() ? "null" : fmt::format("null or {}", also.dump()));
  }

  /// The stages of a component: those of a Sequence, whose list is called `list`, else the component alone.
  [[nodiscard]] std::vector<Member> stages(const std::string& list) const {
    if (is_null()) return {};
    if ((*this)["type"].text() != "Sequence") return {*this};
    std::vector<Member> all;
    for (const Member& element : (*this)[list].elements()) {
      for (Member& stage : element.stages(list)) all.push_back(std::move(stage));
    }
    return all;
  }

 private:
  const std::filesystem::path& path_;
  std::string name_;
  const json& value_;
};

void read_model(const Member& model, TokenizerFile& file) {
  const Member type = model["type"];
  if (type.value() != "BPE") type.refuse("\"BPE\"");
  model["dropout"].must_be_null_or(0.0);
  model["unk_token"].must_be_null_or(nullptr);
  model["continuing_subword_prefix"].must_be_null_or("");
  model["end_of_word_suffix"].must_be_null_or("");
  static_cast<void>(model["byte_fallback"].flag_or_false());  // never used: each byte has a symbol (Vocabulary)
  file.ignore_merges = model["ignore_merges"].flag_or_false();
}

void read_added_tokens(const Member& list, TokenizerFile& file) {
  if (list.is_null()) return;
  for (const Member& element : list.elements()) {
    AddedToken token;
    token.content = element["content"].text();
    token.special = element["special"].flag();
    token.single_word = element["single_word"].flag();
    token.lstrip = element["lstrip"].flag();
    token.rstrip = element["rstrip"].flag();
    token.normalized = element["normalized"].flag();
    if (const json& id = element["id"].value(); id.is_number_integer()) token.stated_id = id.get<std::int64_t>();
    file.added_tokens.push_back(std::move(token));
  }
}

void read_normalizer(const Member& normalizer, TokenizerFile& file) {
  for (const Member& stage : normalizer.stages("normalizers")) {
    if (stage["type"].text() != "NFC") stage["type"].refuse("\"NFC\", or no normaliser");
    file.nfc = true;
  }
}

SplitPattern read_split(const Member& stage) {
  const Member behavior = stage["behavior"];
  if (behavior.value() != "Isolated") behavior.refuse("\"Isolated\"");
  stage["invert"].must_be_null_or(false);
  const Member regex = stage["pattern"]["Regex"];
  const std::string& text = regex.text();
  for (const auto& known : kKnownPatterns) {
    if (text == known.regex) return known.pattern;
  }
  regex.refuse("the pattern of Kolibri 1, Qwen 3 or Qwen 3.8: only these are split exactly as trained");
}

void read_pre_tokenizer(const Member& pre_tokenizer, TokenizerFile& file) {
  bool is_complete = false;
  for (const Member& stage : pre_tokenizer.stages("pretokenizers")) {
    const Member type = stage["type"];
    if (is_complete) type.refuse("nothing after ByteLevel");
    if (type.text() == "Split") {
      file.splits.push_back(read_split(stage));
    } else if (type.text() == "ByteLevel") {
      file.prefix_space = stage["add_prefix_space"].flag();
      file.gpt2_split = stage["use_regex"].is_null() || stage["use_regex"].flag();
      is_complete = true;
    } else {
      type.refuse("\"Split\" or \"ByteLevel\"");
    }
  }
  if (!is_complete) pre_tokenizer.refuse("a ByteLevel stage, after any Split stages");
}

/// Post-processors and decoders: ByteLevel alone is known.
void read_byte_level(const Member& component, const std::string& list) {
  for (const Member& stage : component.stages(list)) {
    if (stage["type"].text() != "ByteLevel") stage["type"].refuse("\"ByteLevel\"");
  }
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  if (bytes.size() > kMaxTokenizerBytes) {
    throw Error(ErrorCode::format, fmt::format("{}: {} bytes, expected at most {} (64 MiB): no tokenizer.json",
                                               path.string(), bytes.size(), kMaxTokenizerBytes));
  }
  TokenizerJson parts = parse_tokenizer_json(bytes, path);
  const Member root(path, "", parts.document);
  TokenizerFile file;
  read_model(root["model"], file);
  read_added_tokens(root["added_tokens"], file);
  read_normalizer(root["normalizer"], file);
  read_pre_tokenizer(root["pre_tokenizer"], file);
  read_byte_level(root["post_processor"], "processors");
  read_byte_level(root["decoder"], "decoders");
  if (root["decoder"].is_null()) root["decoder"].refuse("ByteLevel");
  root["truncation"].must_be_null_or(nullptr);
  root["padding"].must_be_null_or(nullptr);
  file.vocab = std::move(parts.vocab);
  file.merges = std::move(parts.merges);
  return file;
}

}  // namespace kalibri::text
