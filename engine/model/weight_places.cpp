#include "engine/model/weight_places.hpp"

#include <algorithm>
#include <map>
#include <span>

#include "engine/base/error.hpp"
#include "engine/checkpoint/tensor_places.hpp"
#include "engine/model/footprint.hpp"
#include "engine/runtime/read_rate.hpp"
#include "engine/runtime/resident_experts.hpp"

namespace kalibri::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpectedTensor;
using checkpoint::Storage;
using checkpoint::TensorKind;
using kernels::MatrixView;
using runtime::WeightForm;

// Smaller weights come out of the processor's caches, larger ones take longer to measure.
constexpr std::size_t kSmallestSample = std::size_t{8} << 20;
constexpr std::size_t kLargestSample = std::size_t{32} << 20;

/// Reading all weights takes as long as some hundred tokens; a system whose file cache has large pages needs it less.
constexpr double kWorthReading = 1.15;

bool is_of_every_token(const ExpectedTensor& tensor, bool embedding_is_head) {
  switch (tensor.kind) {
    case TensorKind::expert:
    case TensorKind::ngram_table:
    case TensorKind::scale:
    case TensorKind::constant:
      return false;
    case TensorKind::embedding:
      return embedding_is_head;
    default:
      return true;
  }
}

/// Parts of files to be held.
class Parts {
 public:
  explicit Parts(const Checkpoint& checkpoint) : places_(checkpoint) {}

  void add(const void* data, std::int64_t n_bytes) {
    if (data == nullptr) return;
    if (const auto place = places_.find(data)) {  // else it is a copy already
      files_[place->file].push_back({place->offset, static_cast<std::size_t>(n_bytes)});
    }
  }
  void add(const MatrixView& w) {
    add(w.data, kernels::stored_bytes(w));
    if (w.format == kernels::Format::affine) {
      add(w.scales, w.n_rows * kernels::grid_row_bytes(w));
      add(w.biases, w.n_rows * kernels::grid_row_bytes(w));
    } else {
      add(w.scale_inv, kernels::all_bytes(w) - kernels::stored_bytes(w));
    }
  }

  /// As much as is measured with, of the largest.
  [[nodiscard]] std::span<const std::byte> sample() const {
    std::span<const std::byte> largest;
    for (const auto& [file, its_parts] : files_) {
      for (const HeldPages::Part& part : its_parts) {
        if (part.n_bytes > largest.size()) largest = file->bytes().subspan(part.offset, part.n_bytes);
      }
    }
    return largest.first(std::min(largest.size(), kLargestSample));
  }

  [[nodiscard]] std::map<const MappedFile*, std::vector<HeldPages::Part>>& files() { return files_; }

 private:
  checkpoint::TensorPlaces places_;
  std::map<const MappedFile*, std::vector<HeldPages::Part>> files_;
};

/// Routed experts that stay in memory.
std::int64_t expert_bytes(const Footprint& f, const runtime::ExpertCacheOptions& cache) {
  const std::int64_t all = f.n_layers * f.n_experts * (f.makes_experts ? f.expert_bytes : f.slot_bytes);
  if (f.makes_experts) return std::min(all, runtime::ResidentExperts::kMaxExpandedBytes);
  if (cache.n_slots > 0) return f.n_layers * std::min(cache.n_slots, f.n_experts) * f.slot_bytes;
  return cache.n_bytes > 0 ? std::min(all, cache.n_bytes) : all;
}

}  // namespace

MatrixView find_matrix(const Checkpoint& checkpoint, const ExpectedTensor& tensor) {
  const std::int64_t n_rows = tensor.shape[0];
  const std::int64_t n_cols = tensor.shape[1];
  if (tensor.storage == Storage::plain) return checkpoint.plain_matrix(tensor.name, n_rows, n_cols);
  if (tensor.storage == Storage::unscaled) {
    if (const auto problem = checkpoint.unscaled_problem(tensor.name, tensor.shape, /*check_values=*/false)) {
      checkpoint.refuse(*problem);
    }
  }
  return checkpoint.matrix(tensor.name, n_rows, n_cols, /*check_values=*/false);
}

void forget_matrix(const MatrixView& stored) {
  const auto forget = [](const void* data, std::int64_t n_bytes) {
    forget_pages({static_cast<const std::byte*>(data), static_cast<std::size_t>(n_bytes)});
  };
  forget(stored.data, kernels::stored_bytes(stored));
  if (stored.format != kernels::Format::affine) return;
  forget(stored.scales, stored.n_rows * kernels::grid_row_bytes(stored));
  forget(stored.biases, stored.n_rows * kernels::grid_row_bytes(stored));
}

PlacedWeights::PlacedWeights(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& tensors,
                             const runtime::WeightForms& forms, const runtime::WeightPlaceOptions& options) {
  const bool has_head =
      std::ranges::any_of(tensors, [](const ExpectedTensor& tensor) { return tensor.kind == TensorKind::head; });
  Parts parts(checkpoint);
  for (const ExpectedTensor& tensor : tensors) {
    if (!is_of_every_token(tensor, !has_head)) continue;
    if (tensor.shape.size() == 2) {
      const MatrixView stored = find_matrix(checkpoint, tensor);
      if (forms.form_of(stored).kind == WeightForm::Kind::native) {
        parts.add(stored);
      } else {
        formed_.emplace_back(tensor.name, stored);
      }
    } else if (const checkpoint::TensorView* vector = checkpoint.find(tensor.name)) {
      // Read once, but between matrices: a gap would cost them their large pages.
      parts.add(vector->bytes.data(), static_cast<std::int64_t>(vector->bytes.size()));
    }
  }
  if (options.place == runtime::WeightPlace::mapped) return;
  try {
    if (options.place == runtime::WeightPlace::automatic) {
      const std::span<const std::byte> sample = parts.sample();
      if (sample.size() >= kSmallestSample) info_.gain = runtime::large_pages_gain(sample);
      if (info_.gain < kWorthReading) return;
    }
    ThreadPool pool(options.n_threads);
    for (auto& [file, its_parts] : parts.files()) {
      held_.emplace_back(*file, std::move(its_parts), pool);
      info_.read_bytes += static_cast<std::int64_t>(held_.back().n_bytes());
    }
    info_.is_memory = true;
  } catch (const Error& error) {
    // A process can have less than is available, under limits of its own. What could run mapped, runs mapped.
    if (options.place != runtime::WeightPlace::automatic || error.code() != ErrorCode::usage) throw;
    held_.clear();
    info_ = {};
    info_.refusal = error.what();
  }
}

void PlacedWeights::forget_checked(const std::string& prefix) const {
  for (const auto& [name, stored] : formed_) {
    if (name.starts_with(prefix)) forget_matrix(stored);
  }
}

std::int64_t needed_bytes(const Checkpoint& checkpoint, const runtime::Precision& precision,
                          const runtime::ExpertCacheOptions& cache, int n_threads) {
  const Footprint f = footprint(checkpoint, {.precision = precision, .n_threads = n_threads});
  const std::int64_t kept = f.resident_bytes() + expert_bytes(f, cache) + f.state_bytes + f.workspace_bytes;
  return kept / 10 * 11 + (std::int64_t{64} << 20);
}

}  // namespace kalibri::model
