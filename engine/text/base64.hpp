// Base64 as JSON carries bytes in it (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kalibri::text {

/// The bytes that `text` writes; nothing when it is not base64: padded, without line breaks, unused bits zero.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace kalibri::text
