#include "reference/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = failure == std::errc() && end == text.data() + text.size() && number >= 0;
  return whole && !text.empty() ? std::optional(number) : std::nullopt;
}

/// "a" or "a-b", both ends included, as [a, b + 1), within [0, limit); or nothing.
std::optional<LayerRange> parse_range(std::string_view text, std::int64_t limit) {
  const std::size_t dash = text.find('-');
  const auto first = parse_number(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_number(text.substr(dash + 1));
  if (!first || !last || *first > *last || *last >= limit) return std::nullopt;
  return LayerRange{*first, *last + 1};
}

}  // namespace

LayerRange parse_layers(const Options& options, std::int64_t n_layers) {
  if (options.layers.empty()) return {0, n_layers};
  const std::optional<LayerRange> range = parse_range(options.layers, n_layers);
  if (!range) {
    throw Error(fmt::format("--layers {}: expected a or a-b out of 0 to {}", options.layers, n_layers - 1));
  }
  if (options.mode == "chained" && range->first != 0) {
    throw Error(fmt::format("--layers {}: a chained run begins at layer 0; use --mode teacher-forced", options.layers));
  }
  return *range;
}

std::vector<std::string_view> parse_taps(const std::string& taps, const std::vector<std::string_view>& available) {
  if (taps.empty()) return {};
  if (taps == "all") return available;
  const std::vector<std::string_view> asked = split(taps);
  for (const std::string_view name : asked) {
    if (std::ranges::find(available, name) == available.end()) {
      throw Error(fmt::format("--taps: '{}' is none of this model's: {}, or all", name, fmt::join(available, ", ")));
    }
  }
  std::vector<std::string_view> chosen;
  std::ranges::copy_if(available, std::back_inserter(chosen),
                       [&](std::string_view name) { return std::ranges::find(asked, name) != asked.end(); });
  return chosen;
}

std::vector<std::int32_t> parse_positions(const std::string& positions, std::int64_t n_tokens,
                                          const std::string& prompt) {
  if (positions == "none") return {};
  LayerRange rows{0, n_tokens};
  std::set<std::int32_t> chosen;
  const auto choose = [&](const LayerRange& range) {
    for (std::int64_t row = range.first; row < range.end; ++row) chosen.insert(static_cast<std::int32_t>(row));
  };
  if (positions.starts_with("last:")) {
    const std::optional<std::int64_t> n = parse_number(std::string_view(positions).substr(5));
    if (!n || *n < 1) throw Error(fmt::format("--positions {}: expected last:N with N of at least 1", positions));
    choose({std::max<std::int64_t>(0, n_tokens - *n), n_tokens});
  } else if (positions == "all") {
    choose(rows);
  } else {
    for (const std::string_view part : split(positions)) {
      const std::optional<LayerRange> range = parse_range(part, n_tokens);
      if (!range) {
        throw Error(
            fmt::format("--positions {}: '{}': expected all, none, last:N, or positions out of 0 to {} (prompt '{}')",
                        positions, part, n_tokens - 1, prompt));
      }
      choose(*range);
    }
  }
  return {chosen.begin(), chosen.end()};
}

std::string options_json(const Options& options, int n_threads, const std::string& arithmetic) {
  return nlohmann::json{{"directory", options.directory.string()},
                        {"tokens", options.tokens.string()},
                        {"out", options.out.string()},
                        {"dtype", options.dtype},
                        {"precision", options.precision},
                        {"mode", options.mode},
                        {"inputs", options.inputs.string()},
                        {"layers", options.layers},
                        {"taps", options.taps},
                        {"positions", options.positions},
                        {"threads", n_threads},
                        {"full_fingerprint", options.full_fingerprint},
                        {"arithmetic", arithmetic}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace kalibri::reference
