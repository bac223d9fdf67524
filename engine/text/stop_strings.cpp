#include "engine/text/stop_strings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/text/unicode.hpp"

namespace kalibri::text {

namespace {

/// The longest prefix of `bytes` that ends `n` matched bytes of it and then `next`.
std::size_t go_on(std::string_view bytes, const std::vector<std::size_t>& borders, std::size_t n, char next) {
  while (n > 0 && bytes[n] != next) n = borders[n];
  return bytes[n] == next ? n + 1 : 0;
}

std::vector<std::size_t> find_borders(std::string_view bytes) {
  std::vector<std::size_t> borders = {0, 0};
  for (std::size_t i = 1; i < bytes.size(); ++i) borders.push_back(go_on(bytes, borders, borders.back(), bytes[i]));
  return borders;
}

}  // namespace

StopStrings::StopStrings(const std::vector<std::string>& strings) {
  if (strings.size() > kMaxStrings) {
    throw Error(ErrorCode::usage, fmt::format("stop: {} strings, expected at most {}", strings.size(), kMaxStrings));
  }
  for (const std::string& bytes : strings) {
    if (bytes.empty() || bytes.size() > kMaxBytes || !is_utf8(bytes)) {
      throw Error(ErrorCode::usage, fmt::format("stop: expected strings of 1 to {} bytes of UTF-8", kMaxBytes));
    }
    needles_.push_back({bytes, find_borders(bytes)});
  }
}

std::string StopStrings::feed(std::string_view text) {
  for (const char c : text) {
    if (has_matched_) return {};
    held_ += c;
    std::size_t n_complete = 0;
    for (Needle& needle : needles_) {
      needle.n_matched = go_on(needle.bytes, needle.borders, needle.n_matched, c);
      if (needle.n_matched == needle.bytes.size()) n_complete = std::max(n_complete, needle.n_matched);
    }
    if (n_complete > 0) {
      has_matched_ = true;
      held_.resize(held_.size() - n_complete);
      return std::exchange(held_, {});
    }
  }
  std::size_t n_uncertain = 0;
  for (const Needle& needle : needles_) n_uncertain = std::max(n_uncertain, needle.n_matched);
  std::string certain = held_.substr(0, held_.size() - n_uncertain);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::flush() { return std::exchange(held_, {}); }

}  // namespace kalibri::text
