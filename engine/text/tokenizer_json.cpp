#include "engine/text/tokenizer_json.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/text/printable.hpp"
#include "engine/text/tokenizer_file.hpp"

namespace kalibri::text {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 32;

/// Called by the parser for each element. Inside model.vocab and model.merges it fills those, elsewhere the document.
class Reader final : public nlohmann::json_sax<json> {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {}

  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorCode::format, fmt::format("{}: {}", path_.string(), text));
  }

  TokenizerJson take() {
    if (!seen_vocab_) fail("model.vocab: missing");
    if (!seen_merges_) fail("model.merges: missing");
    return std::move(result_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool binary(binary_t&) override { return false; }  // JSON has none

  bool string(string_t& value) override {
    if (place_ != Place::merges) return add(value);
    if (in_pair_) {
      halves_.push_back(std::move(value));
      return true;
    }
    const std::size_t space = value.find(' ');
    if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos) fail_merge();
    return add_merge(value.substr(0, space), value.substr(space + 1));
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    if (place_ != Place::vocab && open_.back()->contains(key_)) {
      fail(fmt::format("key '{}' is given twice", printable(key_)));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ != Place::document) fail_value();
    if (is_model_member("vocab")) {
      if (seen_vocab_) fail("key 'vocab' is given twice");
      seen_vocab_ = true;
      place_ = Place::vocab;
      return true;
    }
    return open(json::object());
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::vocab) fail_value();
    if (place_ == Place::merges) {
      if (in_pair_) fail_merge();
      in_pair_ = true;
      return true;
    }
    if (is_model_member("merges")) {
      if (seen_merges_) fail("key 'merges' is given twice");
      seen_merges_ = true;
      place_ = Place::merges;
      return true;
    }
    return open(json::array());
  }

  bool end_object() override { return close(); }

  bool end_array() override {
    if (!in_pair_) return close();
    if (halves_.size() != 2) fail_merge();
    in_pair_ = false;
    add_merge(std::move(halves_[0]), std::move(halves_[1]));
    halves_.clear();
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(fmt::format("no valid JSON (byte {})", position));
  }

 private:
  enum class Place { document, vocab, merges };

  [[noreturn]] void fail_merge() const {
    fail(fmt::format("model.merges: entry {} is no pair; expected [\"a\", \"b\"] or \"a b\"", result_.merges.size()));
  }

  /// A value of a kind that does not belong where it stands.
  [[noreturn]] void fail_value() const {
    if (place_ == Place::merges) fail_merge();
    fail(fmt::format("model.vocab: entry '{}': expected an id from 0 to {}", printable(key_), kMaxTokenId));
  }

  [[nodiscard]] bool is_model_member(std::string_view name) const {
    return open_.size() == 2 && open_[0]->is_object() && open_[1]->is_object() && model_ == open_[1] && key_ == name;
  }

  bool add(json value) {
    if (place_ == Place::vocab) return add_entry(value);
    if (place_ == Place::merges) fail_value();
    put(std::move(value));
    return true;
  }

  bool add_entry(const json& id) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::uint64_t{kMaxTokenId}) fail_value();
    if (!result_.vocab.emplace(key_, id.get<std::int32_t>()).second) {
      fail(fmt::format("model.vocab: key '{}' is given twice", printable(key_)));
    }
    return true;
  }

  bool add_merge(std::string left, std::string right) {
    result_.merges.emplace_back(std::move(left), std::move(right));
    return true;
  }

  json& put(json value) {
    if (open_.empty()) return result_.document = std::move(value);
    json& parent = *open_.back();
    if (parent.is_object()) return parent[key_] = std::move(value);
    return parent.emplace_back(std::move(value));
  }

  bool open(json value) {
    if (open_.size() == kMaxDepth) fail(fmt::format("nested deeper than {} levels", kMaxDepth));
    const bool is_model = open_.size() == 1 && open_[0]->is_object() && key_ == "model";
    open_.push_back(&put(std::move(value)));  // stays where it is: its parent gets no other member before it is closed
    if (is_model) model_ = open_.back();
    return true;
  }

  bool close() {
    if (place_ == Place::document) {
      open_.pop_back();
    } else {
      place_ = Place::document;
    }
    return true;
  }

  const std::filesystem::path& path_;
  TokenizerJson result_;
  std::vector<json*> open_;      // objects and arrays of the document that are not closed yet
  const json* model_ = nullptr;  // the member "model" of the outermost object
  std::string key_;
  Place place_ = Place::document;
  bool seen_vocab_ = false;
  bool seen_merges_ = false;
  bool in_pair_ = false;             // inside ["a", "b"]
  std::vector<std::string> halves_;  // of that pair so far
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  Reader reader(path);
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  json::sax_parse(begin, begin + bytes.size(), &reader);
  return reader.take();
}

}  // namespace kalibri::text
