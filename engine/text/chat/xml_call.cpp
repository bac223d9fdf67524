// Qwen's tool calls. The hard part is where a value ends, because values are bare text that may hold anything, tags
// too.
#include <algorithm>
#include <unordered_map>

#include "engine/text/chat/schema.hpp"
#include "engine/text/chat/strip.hpp"
#include "engine/text/chat/tool_call.hpp"

namespace kalibri::chat {

namespace {

constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr std::string_view kSpacesAndQuotes = " \t\r\n\"'";

class XmlParser {
 public:
  XmlParser(std::string_view body, const std::vector<Json>& tools) : body_(body), tools_(tools) {
    find_value_ends();
    const std::string_view trimmed = strip_back(body, kSpaces);
    if (trimmed.ends_with(kFunctionEnd)) final_end_ = trimmed.size() - kFunctionEnd.size();
  }

  std::optional<XmlCall> parse() {
    XmlCall result;
    skip_spaces();
    const std::optional<std::string> name = take_head(kFunction);
    if (!name) return std::nullopt;
    result.call.name = *name;
    parameters_ = find_parameters(tools_, *name);
    for (skip_spaces(); at_ < body_.size() && body_.substr(at_).starts_with(kParameter); skip_spaces()) {
      const std::optional<std::string> key = take_head(kParameter);
      if (!key || !take_value(*key)) return std::nullopt;
    }
    if (body_.substr(at_).starts_with(kFunctionEnd)) {
      result.is_closed = true;
      at_ += kFunctionEnd.size();
      skip_spaces();
    }
    if (at_ != body_.size()) return std::nullopt;
    result.call.arguments = arguments_text();
    return result;
  }

 private:
  /// Where each </parameter> stands that ends a value: what follows it, after whitespace, is a parameter, the end of
  /// the function, or the end of the body.
  void find_value_ends() {
    for (std::size_t at = 0; (at = body_.find(kParameterEnd, at)) != std::string_view::npos;) {
      const std::size_t end = at;
      at += kParameterEnd.size();
      const std::size_t next = std::min(body_.find_first_not_of(kSpaces, at), body_.size());
      const std::string_view rest = body_.substr(next);
      if (rest.empty() || rest.starts_with(kParameter) || rest.starts_with(kFunctionEnd)) value_ends_.push_back(end);
      at = next;
    }
  }

  void skip_spaces() { at_ = std::min(body_.find_first_not_of(kSpaces, at_), body_.size()); }

  /// The name in "<function=NAME>" at `at`: all up to the first '>' in the same line, without quotes.
  [[nodiscard]] std::optional<std::string> head_name(std::string_view tag, std::size_t at) const {
    const std::size_t begin = at + tag.size();
    const std::size_t end = body_.find_first_of(">\n", begin);
    if (end == std::string_view::npos || body_[end] == '\n') return std::nullopt;
    const std::string_view name = strip(body_.substr(begin, end - begin), kSpacesAndQuotes);
    return name.empty() ? std::nullopt : std::optional(std::string(name));
  }

  std::optional<std::string> take_head(std::string_view tag) {
    if (!body_.substr(at_).starts_with(tag)) return std::nullopt;
    const std::optional<std::string> name = head_name(tag, at_);
    if (name) at_ = body_.find('>', at_) + 1;
    return name;
  }

  /// The next line feed from at_ on, before `end`, that a parameter's head follows which `is_next` accepts.
  template <typename Predicate>
  std::optional<std::size_t> find_next_head(std::size_t end, Predicate is_next) const {
    for (std::size_t lf = at_; (lf = body_.find('\n', lf)) < end; ++lf) {
      if (!body_.substr(lf + 1).starts_with(kParameter)) continue;
      const std::optional<std::string> key = head_name(kParameter, lf + 1);
      if (key && is_next(*key)) return lf;
    }
    return std::nullopt;
  }

  bool take_value(const std::string& key) {
    const auto close = std::lower_bound(value_ends_.begin(), value_ends_.end(), at_);
    if (close != value_ends_.end()) {
      const auto is_declared_and_new = [&](const std::string& other) {
        return other != key && find_parameter(parameters_, other) != nullptr && !places_.contains(other);
      };
      if (const auto lf = find_next_head(*close, is_declared_and_new)) return put(key, *lf + 1, *lf + 1);
      return put(key, *close, *close + kParameterEnd.size());
    }
    if (const auto lf = find_next_head(body_.size(), [](const std::string&) { return true; })) {
      return put(key, *lf + 1, *lf + 1);
    }
    return final_end_ >= at_ && final_end_ != std::string_view::npos && put(key, final_end_, final_end_);
  }

  /// Takes the value that ends before `end`, without the line break that frames it on either side; goes on at `next`.
  bool put(const std::string& key, std::size_t end, std::size_t next) {
    std::string_view value = body_.substr(at_, end - at_);
    if (value.starts_with("\r\n")) {
      value.remove_prefix(2);
    } else if (value.starts_with('\n')) {
      value.remove_prefix(1);
    }
    if (value.ends_with('\n')) value.remove_suffix(value.ends_with("\r\n") ? 2 : 1);
    const auto [place, is_new] = places_.emplace(key, keys_.size());
    if (is_new) {
      keys_.push_back(key);
      values_.emplace_back();
    }
    values_[place->second] = typed_value(value, parameters_, key);
    at_ = next;
    return true;
  }

  [[nodiscard]] std::string arguments_text() const {
    std::string text = "{";
    for (std::size_t i = 0; i < keys_.size(); ++i)
      text += (i > 0 ? ", " : "") + json_quoted(keys_[i]) + ": " + values_[i];
    return text += '}';
  }

  std::string_view body_;
  const std::vector<Json>& tools_;
  const Json* parameters_ = nullptr;
  std::vector<std::size_t> value_ends_;
  std::size_t final_end_ = std::string_view::npos;  // of the </function> that ends the body
  std::size_t at_ = 0;
  std::unordered_map<std::string, std::size_t> places_;
  std::vector<std::string> keys_;    // in the order of their first place
  std::vector<std::string> values_;  // JSON texts
};

}  // namespace

std::optional<XmlCall> parse_xml_call(std::string_view body, const std::vector<Json>& tools) {
  return XmlParser(body, tools).parse();
}

}  // namespace kalibri::chat
