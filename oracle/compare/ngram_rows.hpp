// The rows of the n-gram table that the two sides looked up. A row's number is a hash of token ids: integers without
// rounding, so that nothing but equality is right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "oracle/dump/reader.hpp"

namespace kalibri::oracle {

struct NgramRows {
  std::int64_t n_tokens = 0;
  std::int64_t n_differing = 0;     // tokens with another row for any head
  std::int64_t first_position = 0;  // of those
};

/// Nothing when one side has no ngram_rows. Throws dump::Error when shapes differ.
std::optional<NgramRows> compare_ngram_rows(const dump::Reader& reference, const dump::Reader& candidate,
                                            const std::string& prompt, std::int64_t layer);

}  // namespace kalibri::oracle
