// Sizes of memory as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kalibri::cli {

/// "24G", "24GiB", "512M", "1.5T", "65536", with K, M, G, T as powers of 1,024 and KB, MB, GB, TB as powers of 1,000.
/// Nothing for other texts, for 0, and for what does not fit into 63 bits.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// "3.10 GiB", "512.00 MiB", "17 B": a unit that leaves at least 1 before the point.
std::string bytes_text(std::int64_t n_bytes);

}  // namespace kalibri::cli
