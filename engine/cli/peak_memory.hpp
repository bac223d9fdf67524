// How much memory this process has had at once.
#pragma once

#include <cstdint>

namespace kalibri::cli {

/// Bytes of its largest resident set so far, mapped files included.
std::int64_t peak_rss_bytes();

}  // namespace kalibri::cli
