// An FP8 checkpoint against the bf16 one that it was made from: whether its codes and scales, read as this program
// reads them, are those weights. It goes by names and dtypes alone and knows no family. Source: kolibri-mlx,
// scripts/check_dequant.py.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/checkpoint/lazy_shards.hpp"

namespace kalibri::checkpoint {

/// Of an FP8 tensor r = max|dequantised - bf16| / (max|bf16| + 1e-12) may be this much. Three bits of mantissa put a
/// code within 1/16 of the block's largest value, and the tensor's largest is no smaller.
inline constexpr double kLargestDequantRatio = 0.07;

struct DequantMismatch {
  std::string tensor;
  std::string text;  // found and expected
};

struct DequantReport {
  std::int64_t n_fp8 = 0;
  double worst = 0;  // the largest r, or NaN
  std::string worst_tensor;
  std::int64_t n_identical = 0;  // others
  std::vector<DequantMismatch> mismatches;
};

/// Compares every tensor of `fp8`, or of its shard number `shard` (from 1, by name), with the tensor of that name in
/// `bf16`, whichever shard that is in. FP8 tensors with `…_scale_inv` are dequantised, unless the other side is FP8 as
/// well; all others must be equal bit for bit. What is missing, has another shape or dtype, or (of whole directories)
/// is only in `bf16`, is a mismatch. Rows are read as they are needed and not kept. `progress` hears of bytes read of
/// both sides and of how many there are, one call at a time, from any thread. Throws Error(usage) for a shard that
/// there is not, Error(input) where there is no FP8 tensor to check or `bf16` is an MLX directory, Error(file |
/// format).
DequantReport check_dequant(LazyShards& fp8, LazyShards& bf16, std::optional<std::int64_t> shard, ThreadPool& pool,
                            const std::function<void(std::int64_t n_done, std::int64_t n_all)>& progress);

}  // namespace kalibri::checkpoint
