// Shared by the tests of both families: a loaded checkpoint, and a sink that keeps what a run hands out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/session.hpp"

namespace kalibri::test {

/// Keeps every tensor, whole: floats and ids as double, by layer and name.
class KeepingSink final : public runtime::TapSink {
 public:
  [[nodiscard]] bool wants(int, std::string_view) const override { return true; }
  void take(const runtime::TapRows<float>& rows) override { keep(rows); }
  void take(const runtime::TapRows<std::int32_t>& rows) override { keep(rows); }
  void take(const runtime::TapRows<std::int64_t>& rows) override { keep(rows); }

  [[nodiscard]] const std::vector<double>& get(int layer, const std::string& name) const {
    return tensors_.at({layer, name});
  }
  [[nodiscard]] const std::map<std::pair<int, std::string>, std::vector<double>>& all() const { return tensors_; }

 private:
  template <typename T>
  void keep(const runtime::TapRows<T>& rows) {
    std::int64_t n = rows.n_rows;
    for (const std::int64_t dim : rows.dims) n *= dim;
    std::vector<double>& tensor = tensors_[{rows.layer, std::string(rows.name)}];
    tensor.insert(tensor.end(), rows.data, rows.data + n);  // rows come in rising position
  }

  std::map<std::pair<int, std::string>, std::vector<double>> tensors_;
};

/// Precisions in which a run's bits must not depend on how it is cut: every kind of arithmetic is in one of them.
inline const std::vector<const char*> kPrecisions = {
    "exact",
    "native",
    "bf16",
    "production",
    "dense=affine:8:32,experts=affine:4:32,embed=affine:4:32,head=affine:8:32,activations=int16",
    "compute=bf16-served,residual=bf16,experts=affine:3:32,activations=int8,kv=bf16"};

struct LoadedModel {
  LoadedModel(const std::filesystem::path& directory, const char* precision,
              const runtime::ExpertCacheOptions& cache = {}, const runtime::WeightPlaceOptions& place = {})
      : checkpoint(checkpoint::Checkpoint::open(directory)),
        model(checkpoint, runtime::Precision::parse(precision), cache, place) {}
  checkpoint::Checkpoint checkpoint;
  model::Model model;
};

/// All logits [T, V] of `ids` cut into calls of `cuts` tokens (the last one repeated as needed).
inline std::vector<float> run_in_cuts(const model::Model& model, ThreadPool& pool, std::span<const std::int32_t> ids,
                                      const std::vector<std::int64_t>& cuts, std::int64_t chunk,
                                      runtime::TapSink* taps = nullptr) {
  const auto n_tokens = static_cast<std::int64_t>(ids.size());
  const std::int64_t vocab = model.info().vocab_size;
  model::Session session(model, pool, {n_tokens, chunk});
  std::vector<float> logits(static_cast<std::size_t>(n_tokens * vocab));
  std::int64_t first = 0;
  for (std::size_t call = 0; first < n_tokens; ++call) {
    const std::int64_t n = std::min(cuts[std::min(call, cuts.size() - 1)], n_tokens - first);
    session.forward(
        ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
        std::span<float>(logits).subspan(static_cast<std::size_t>(first * vocab), static_cast<std::size_t>(n * vocab)),
        taps);
    first += n;
  }
  return logits;
}

}  // namespace kalibri::test
