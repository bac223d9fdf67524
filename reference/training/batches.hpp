// Token ids from a file, packed into rows of equal length. A document never looks into another: the model gets each
// token's document number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kalibri::reference::training {

using Ids = std::vector<std::int32_t>;

/// Lines {"ids": [...]}. Throws Error naming the line.
std::vector<Ids> read_ids(const std::filesystem::path& file, std::int64_t vocab_size);

struct Batch {
  std::int64_t n_rows = 0;              // B
  std::int64_t n_tokens = 0;            // T
  std::vector<std::int64_t> ids;        // [B, T]; 0 where there is no document
  std::vector<std::int32_t> documents;  // [B, T]: number of the document in its row, -1 where there is none
  std::vector<std::int64_t> targets;    // [B, T]: the document's next token, -100 where there is none
};

/// Takes documents from `next` on, in their order and again from the first behind the last, until n_rows rows are full;
/// moves `next`. Documents begin at multiples of `alignment`; what does not fit a row is cut off.
Batch pack(const std::vector<Ids>& documents, std::size_t& next, std::int64_t n_rows, std::int64_t n_tokens,
           std::int64_t alignment);

}  // namespace kalibri::reference::training
