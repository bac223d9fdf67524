// Which blocks of earlier tokens a query of sparse attention attends to. Source: transformers,
// modeling_qwen4_exp.py, indexer; ties, which it leaves open, go to the lower index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kalibri::model {

/// The blocks that the query at index `pos` keeps, ascending: the min(n_kept, n) highest scores of its n = (pos + 1) /
/// r complete blocks; equal scores: lower index. scores: at least n.
std::vector<std::int32_t> select_blocks(std::span<const float> scores, std::int64_t pos, std::int64_t block_size,
                                        std::int64_t n_kept);

/// A run of tokens [first, first + n).
struct TokenRun {
  std::int64_t first = 0;
  std::int64_t n = 0;
};

/// The tokens that the query attends to, as ascending runs without a gap inside: its kept blocks and the tail behind
/// the last complete block (up to block_size - 1 tokens, its own among them unless its block is complete).
std::vector<TokenRun> attended_runs(std::span<const std::int32_t> blocks, std::int64_t pos, std::int64_t block_size);

}  // namespace kalibri::model
