#include "engine/cli/byte_size.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace kalibri::cli {

namespace {

constexpr std::string_view kPrefixes = "KMGT";

/// What the text behind the number multiplies it with.
std::optional<double> unit(std::string_view text) {
  if (text.empty() || text == "B") return 1;
  const std::size_t power = kPrefixes.find(text.front());
  if (power == kPrefixes.npos) return {};
  text.remove_prefix(1);
  if (!text.empty() && text != "iB" && text != "B") return {};
  return std::pow(text == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
}

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  constexpr double kEnd = 0x1p63;
  const std::size_t n_digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  const char* end = text.data() + n_digits;
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec != std::errc() || parsed.ptr != end) return {};
  const std::optional<double> factor = unit(text.substr(n_digits));
  if (!factor) return {};
  const double n_bytes = std::floor(number * *factor);
  if (!(n_bytes >= 1 && n_bytes < kEnd)) return {};
  return static_cast<std::int64_t>(n_bytes);
}

std::string bytes_text(std::int64_t n_bytes) {
  if (n_bytes > -1024 && n_bytes < 1024) return fmt::format("{} B", n_bytes);
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(n_bytes) / 1024;
  std::size_t i = 0;
  for (; std::abs(value) >= 1024 && i + 1 < kUnits.size(); ++i) value /= 1024;
  return fmt::format("{:.2f} {}", value, kUnits[i]);
}

}  // namespace kalibri::cli
