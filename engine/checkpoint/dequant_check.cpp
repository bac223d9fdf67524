#include "engine/checkpoint/dequant_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "engine/base/error.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/json.hpp"
#include "engine/checkpoint/values.hpp"
#include "engine/kernels/codec.hpp"

namespace kalibri::checkpoint {

namespace {

constexpr std::int64_t kElementsPerJob = 1 << 20;
constexpr std::int64_t kBlock = kernels::kFp8Block;

/// Two tensors of one name and shape.
struct Pair {
  std::string name;
  const TensorView* fp8 = nullptr;
  const TensorView* bf16 = nullptr;
  std::vector<float> scale_inv;  // empty: bytes are compared
};

/// Rows of a pair of matrices, or bytes of a pair of other tensors.
struct Job {
  std::size_t pair = 0;
  std::int64_t first = 0;
  std::int64_t n = 0;
};

/// What a job saw.
struct Seen {
  float largest = 0;     // of |bf16|
  float difference = 0;  // the largest, or NaN once a value is not finite
  std::int64_t at = -1;  // its element; of others the first that differs
  float fp8_value = 0;
  float bf16_value = 0;
};

std::int64_t n_blocks(std::int64_t n) { return (n + kBlock - 1) / kBlock; }

/// Whether it is the scales of an FP8 tensor, which are read with it. `file`: the one shard that is looked at; weights
/// of others need not be there.
bool is_scale(LazyShards& shards, std::string_view name, const std::string& file) {
  constexpr std::string_view kSuffix = "_scale_inv";
  if (!name.ends_with(kSuffix)) return false;
  const auto weight = shards.places().find(name.substr(0, name.size() - kSuffix.size()));
  if (weight == shards.places().end()) return false;
  return (!file.empty() && weight->second != file) || shards.find(weight->first)->dtype == Dtype::f8_e4m3;
}

std::string form(const TensorView& tensor) {
  return fmt::format("{} {}", dtype_name(tensor.dtype), shape_text(tensor.shape));
}

class Pairing {
 public:
  Pairing(LazyShards& fp8, LazyShards& bf16, DequantReport& report) : fp8_(fp8), bf16_(bf16), report_(report) {}

  /// `file`: the only shard that is checked, if there is one.
  void add(const std::string& name, const std::string& file) {
    if (is_scale(fp8_, name, file)) return;
    const TensorView& ours = *fp8_.find(name);
    const TensorView* theirs = bf16_.find(name);
    const bool is_coded = ours.dtype == Dtype::f8_e4m3 && (theirs == nullptr || theirs->dtype != Dtype::f8_e4m3);
    if (is_coded) ++report_.n_fp8;
    if (theirs == nullptr) return mismatch(name, fmt::format("{}, missing in {}", form(ours), bf16_name()));
    const bool has_dtype =
        is_coded ? theirs->dtype == Dtype::bf16 || theirs->dtype == Dtype::f32 : theirs->dtype == ours.dtype;
    if (ours.shape != theirs->shape || !has_dtype) {
      return mismatch(name, fmt::format("{}, but {} in {}", form(ours), form(*theirs), bf16_name()));
    }
    Pair pair{name, &ours, theirs, {}};
    if (is_coded && !add_scales(pair)) return;
    pairs.push_back(std::move(pair));
  }

  void add_extra() {
    for (const auto& [name, file] : bf16_.places()) {
      if (!fp8_.places().contains(name)) mismatch(name, fmt::format("in {} only, {}", bf16_name(), printable(file)));
    }
  }

  void mismatch(const std::string& name, std::string text) {
    report_.mismatches.push_back({printable(name), std::move(text)});
  }
  [[nodiscard]] std::string bf16_name() const { return bf16_.directory().string(); }

  std::vector<Pair> pairs;

 private:
  bool add_scales(Pair& pair) {
    const std::string name = scale_name(pair.name);
    const TensorView* scales = fp8_.find(name);
    if (pair.fp8->shape.size() != 2) {
      mismatch(pair.name, form(*pair.fp8) + ": no matrix, so it has no blocks");
      return false;
    }
    const std::vector<std::int64_t> shape = {n_blocks(pair.fp8->shape[0]), n_blocks(pair.fp8->shape[1])};
    if (scales == nullptr) {
      mismatch(pair.name, fmt::format("F8_E4M3, but {} is missing", printable(name)));
      return false;
    }
    const bool is_number = scales->dtype == Dtype::f32 || scales->dtype == Dtype::bf16 || scales->dtype == Dtype::f16;
    if (scales->shape != shape || !is_number) {
      mismatch(pair.name, fmt::format("{} is {}, expected {} of F32, BF16 or F16", printable(name), form(*scales),
                                      shape_text(shape)));
      return false;
    }
    pair.scale_inv = read_widened(*scales);
    return true;
  }

  LazyShards& fp8_;
  LazyShards& bf16_;
  DequantReport& report_;
};

std::vector<Job> jobs_of(const std::vector<Pair>& pairs) {
  std::vector<Job> jobs;
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    const bool is_matrix = !pairs[p].scale_inv.empty();
    const auto& shape = pairs[p].fp8->shape;
    const std::int64_t n = is_matrix ? shape[0] : static_cast<std::int64_t>(pairs[p].fp8->bytes.size());
    // Whole rows of blocks, so that a job's rows are a matrix of their own.
    const std::int64_t per_job =
        is_matrix ? std::max<std::int64_t>(1, kElementsPerJob / kBlock / shape[1]) * kBlock : 4 * kElementsPerJob;
    for (std::int64_t first = 0; first < n; first += per_job) {
      jobs.push_back({p, first, std::min(per_job, n - first)});
    }
  }
  return jobs;
}

/// Largest of |a - b| and of |b|; NaN where one is not finite. Sixteen side by side, which is the same and one vector.
std::array<float, 2> largest_of_row(const std::vector<float>& a, const std::vector<float>& b) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> differences{};
  std::array<float, kLanes> sizes{};
  bool is_finite = true;
  for (std::size_t first = 0; first < a.size(); first += kLanes) {
    const std::size_t n = std::min(kLanes, a.size() - first);
    bool all = true;
    for (std::size_t k = 0; k < n; ++k) {
      const float difference = std::fabs(a[first + k] - b[first + k]);
      const float size = std::fabs(b[first + k]);
      differences[k] = differences[k] < difference ? difference : differences[k];
      sizes[k] = sizes[k] < size ? size : sizes[k];
      all &= difference <= std::numeric_limits<float>::max();  // also when only one is an infinity
    }
    is_finite &= all;
  }
  if (!is_finite) return {NAN, NAN};
  return {*std::max_element(differences.begin(), differences.end()), *std::max_element(sizes.begin(), sizes.end())};
}

/// Where |a - b| is that largest, or for NaN the first that is not finite.
std::size_t find_difference(const std::vector<float>& a, const std::vector<float>& b, float largest) {
  for (std::size_t j = 0;; ++j) {
    const float difference = std::fabs(a[j] - b[j]);
    if (std::isnan(largest) ? !(difference <= std::numeric_limits<float>::max()) : difference == largest) return j;
  }
}

Seen compare_rows(const Pair& pair, const Job& job) {
  const std::int64_t n_cols = pair.fp8->shape[1];
  const std::int64_t width = dtype_bits(pair.bf16->dtype) / 8;
  const std::vector<std::byte> codes = read_bytes(*pair.fp8, job.first * n_cols, job.n * n_cols);
  const std::vector<std::byte> values = read_bytes(*pair.bf16, job.first * n_cols * width, job.n * n_cols * width);
  const kernels::MatrixView coded{.format = kernels::Format::e4m3_block,
                                  .n_rows = job.n,
                                  .n_cols = n_cols,
                                  .data = codes.data(),
                                  .scale_inv = pair.scale_inv.data() + job.first / kBlock * n_blocks(n_cols)};
  const kernels::MatrixView plain{.format = width == 2 ? kernels::Format::bf16 : kernels::Format::f32,
                                  .n_rows = job.n,
                                  .n_cols = n_cols,
                                  .data = values.data()};
  std::vector<float> a(static_cast<std::size_t>(n_cols));
  std::vector<float> b(a.size());
  Seen seen;
  for (std::int64_t row = 0; row < job.n && !std::isnan(seen.difference); ++row) {
    kernels::decode_row(coded, row, a.data());
    kernels::decode_row(plain, row, b.data());
    const auto [difference, largest] = largest_of_row(a, b);
    if (seen.largest < largest) seen.largest = largest;
    if (difference <= seen.difference) continue;
    const std::size_t j = find_difference(a, b, difference);
    seen.difference = difference;
    seen.at = (job.first + row) * n_cols + static_cast<std::int64_t>(j);
    seen.fp8_value = a[j];
    seen.bf16_value = b[j];
  }
  return seen;
}

Seen compare_bytes(const Pair& pair, const Job& job) {
  const std::vector<std::byte> ours = read_bytes(*pair.fp8, job.first, job.n);
  const std::vector<std::byte> theirs = read_bytes(*pair.bf16, job.first, job.n);
  Seen seen;
  const auto differing = std::mismatch(ours.begin(), ours.end(), theirs.begin()).first;
  if (differing != ours.end()) seen.at = (job.first + (differing - ours.begin())) * 8 / dtype_bits(pair.fp8->dtype);
  return seen;
}

/// What two jobs of one tensor saw together; `first` has the earlier elements.
void merge(Seen& first, const Seen& second) {
  if (first.largest < second.largest) first.largest = second.largest;
  if (std::isnan(first.difference)) return;
  const bool is_worse = !(second.difference <= first.difference) || first.at < 0;
  if (!is_worse) return;
  const float largest = first.largest;
  first = second;
  first.largest = largest;
}

void judge(const Pair& pair, const Seen& seen, Pairing& pairing, DequantReport& report) {
  const std::string where = index_text(std::max<std::int64_t>(seen.at, 0), pair.fp8->shape);
  if (pair.scale_inv.empty()) {
    if (seen.at < 0) {
      ++report.n_identical;
    } else {
      pairing.mismatch(pair.name, fmt::format("other bits than in {}, first at {}", pairing.bf16_name(), where));
    }
    return;
  }
  const double r = static_cast<double>(seen.difference) / (static_cast<double>(seen.largest) + 1e-12);
  if (!std::isnan(report.worst) && (report.worst_tensor.empty() || !(r <= report.worst))) {
    report.worst = r;
    report.worst_tensor = printable(pair.name);
  }
  if (r <= kLargestDequantRatio) return;
  pairing.mismatch(pair.name,
                   fmt::format("r = {:.4f}, at most {} expected: {:g} at {}, {:g} in {}", r, kLargestDequantRatio,
                               seen.fp8_value, where, seen.bf16_value, pairing.bf16_name()));
}

/// An MLX directory stacks the experts under names of its own: none of them would be found.
void refuse_stacked(const LazyShards& bf16) {
  for (const auto& [name, file] : bf16.places()) {
    if (name.find(".switch_mlp.") == std::string::npos) continue;
    throw Error(ErrorCode::input,
                fmt::format("{}: an MLX directory ({}); name the bf16 checkpoint that the FP8 one was made from",
                            bf16.directory().string(), printable(name)));
  }
}

}  // namespace

DequantReport check_dequant(LazyShards& fp8, LazyShards& bf16, std::optional<std::int64_t> shard, ThreadPool& pool,
                            const std::function<void(std::int64_t n_done, std::int64_t n_all)>& progress) {
  DequantReport report;
  refuse_stacked(bf16);
  Pairing pairing(fp8, bf16, report);
  const auto n_shards = static_cast<std::int64_t>(fp8.files().size());
  if (shard && (*shard < 1 || *shard > n_shards)) {
    throw Error(ErrorCode::usage, fmt::format("--shard: {}, expected 1 to {}", *shard, n_shards));
  }
  if (shard) {
    const std::string& file = fp8.files()[static_cast<std::size_t>(*shard - 1)];
    for (const auto& [name, tensor] : fp8.open(file).tensors()) pairing.add(name, file);
  } else {
    for (const auto& [name, file] : fp8.places()) pairing.add(name, "");
    pairing.add_extra();
  }
  if (report.n_fp8 == 0 && !shard) {
    throw Error(ErrorCode::input, fmt::format("{}: holds no FP8 tensor that is not FP8 in {} as well; name the FP8 "
                                              "checkpoint first, then the one in bf16",
                                              fp8.directory().string(), bf16.directory().string()));
  }

  const std::vector<Job> jobs = jobs_of(pairing.pairs);
  std::vector<Seen> seen(jobs.size());
  const auto n_bytes = [](const Pair& pair) {
    return static_cast<std::int64_t>(pair.fp8->bytes.size() + pair.bf16->bytes.size());
  };
  std::int64_t n_all = 0;
  for (const Pair& pair : pairing.pairs) n_all += n_bytes(pair);
  std::int64_t n_done = 0;
  std::mutex mutex;
  pool.parallel_for(static_cast<std::int64_t>(jobs.size()), [&](std::int64_t i, int) {
    const Job& job = jobs[static_cast<std::size_t>(i)];
    const Pair& pair = pairing.pairs[job.pair];
    const bool is_matrix = !pair.scale_inv.empty();
    seen[static_cast<std::size_t>(i)] = is_matrix ? compare_rows(pair, job) : compare_bytes(pair, job);
    const std::int64_t n_job =
        is_matrix ? job.n * pair.fp8->shape[1] * (8 + dtype_bits(pair.bf16->dtype)) / 8 : 2 * job.n;
    const std::lock_guard lock(mutex);
    progress(n_done += n_job, n_all);
  });

  std::vector<Seen> of_pair(pairing.pairs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) merge(of_pair[jobs[i].pair], seen[i]);
  for (std::size_t p = 0; p < of_pair.size(); ++p) judge(pairing.pairs[p], of_pair[p], pairing, report);
  std::stable_sort(report.mismatches.begin(), report.mismatches.end(),
                   [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  return report;
}

}  // namespace kalibri::checkpoint
