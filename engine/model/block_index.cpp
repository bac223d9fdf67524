#include "engine/model/block_index.hpp"

#include <algorithm>
#include <numeric>

#include "engine/kernels/mutation.hpp"
#include "engine/model/router.hpp"

namespace kalibri::model {

std::vector<std::int32_t> select_blocks(std::span<const float> scores, std::int64_t pos, std::int64_t block_size,
                                        std::int64_t n_kept) {
  const std::int64_t n_complete = (pos + 1) / block_size;
  std::int64_t most = KALIBRI_MUTATE(n_kept, "sparse_one_block_less", n_kept - 1);
  most = KALIBRI_MUTATE(most, "sparse_tail_inside_budget", (pos + 1) % block_size > 0 ? most - 1 : most);
  most = KALIBRI_MUTATE(most, "sparse_dense", n_complete);
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(std::min(most, n_complete)));
  if (blocks.empty()) return blocks;
  select_top_k(scores.first(static_cast<std::size_t>(n_complete)), static_cast<std::int64_t>(blocks.size()),
               blocks.data());
  if (KALIBRI_MUTATE(false, "sparse_own_block_kept", (pos + 1) % block_size == 0)) {
    const auto own = static_cast<std::int32_t>(n_complete - 1);
    if (std::find(blocks.begin(), blocks.end(), own) == blocks.end()) blocks.back() = own;
  }
  if (KALIBRI_MUTATE(false, "sparse_nearest_blocks", true)) {
    std::iota(blocks.begin(), blocks.end(), static_cast<std::int32_t>(n_complete - std::ssize(blocks)));
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

std::vector<TokenRun> attended_runs(std::span<const std::int32_t> blocks, std::int64_t pos, std::int64_t block_size) {
  std::vector<TokenRun> runs;
  const auto add = [&](std::int64_t first, std::int64_t n) {
    if (!runs.empty() && runs.back().first + runs.back().n == first) {
      runs.back().n += n;
    } else if (n > 0) {
      runs.push_back({first, n});
    }
  };
  for (const std::int32_t block : blocks) add(block * block_size, block_size);
  const std::int64_t tail_first = (pos + 1) / block_size * block_size;
  const std::int64_t tail = pos + 1 - tail_first;
  // A query whose only tokens are its tail must see them; otherwise it would see nothing.
  add(tail_first, KALIBRI_MUTATE(tail, "sparse_tail_not_attended", blocks.empty() ? tail : 0));
  return runs;
}

}  // namespace kalibri::model
