#include "engine/cli/positions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

std::vector<std::int32_t> parse_positions(const std::string& text, std::int64_t n_tokens, const std::string& prompt) {
  const auto refuse = [&](std::string_view part) {
    throw Error(ErrorCode::usage, fmt::format("--positions {}: '{}': expected all, none, last:N, or positions out of 0 "
                                              "to {} (prompt '{}') such as 0,5,7-12",
                                              text, part, n_tokens - 1, prompt));
  };
  std::set<std::int32_t> chosen;
  const auto choose = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t pos = first; pos <= last; ++pos) chosen.insert(static_cast<std::int32_t>(pos));
  };
  if (text == "all") {
    choose(0, n_tokens - 1);
  } else if (text.starts_with("last:")) {
    const auto n = parse_number(std::string_view(text).substr(5));
    if (!n || *n < 1) refuse(text);
    choose(std::max<std::int64_t>(0, n_tokens - *n), n_tokens - 1);
  } else if (text != "none") {
    for (std::string_view rest = text;;) {
      const std::string_view part = rest.substr(0, rest.find(','));
      const std::size_t dash = part.find('-');
      const auto first = parse_number(part.substr(0, dash));
      const auto last = dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
      if (!first || !last || *first > *last || *last >= n_tokens) refuse(part);
      choose(*first, *last);
      if (part.size() == rest.size()) break;
      rest.remove_prefix(part.size() + 1);
    }
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace kalibri::cli
