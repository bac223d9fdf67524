// The expert store for checkpoints that do not fit into memory: each layer keeps a fixed number of experts, as stored,
// and reads the others when they are wanted, the longest unwanted making room. Reads begin when a layer's experts are
// known; who computes takes whichever is there. Which experts are kept never changes a result: an expert's weights are
// the same bytes wherever they lie.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/base/anonymous_memory.hpp"
#include "engine/base/read_queue.hpp"
#include "engine/checkpoint/tensor_places.hpp"
#include "engine/runtime/expert_slots.hpp"
#include "engine/runtime/expert_source.hpp"
#include "engine/runtime/expert_store.hpp"

namespace kalibri::runtime {

class StreamedExperts final : public ExpertStore {
 public:
  /// stored [n_layers][n_experts], mapped tensors of `places`; refuse(layer, expert) throws Error(tensor) for values
  /// that cannot be used, and names them. Throws Error(usage) for options that cannot be met.
  StreamedExperts(const std::vector<std::vector<ExpertWeights>>& stored, checkpoint::TensorPlaces places,
                  const ExpertCacheOptions& options,
                  std::function<void(std::int64_t layer, std::int64_t expert)> refuse);
  ~StreamedExperts() override;

  std::unique_ptr<ExpertVisit> visit(std::int64_t layer, std::vector<std::int32_t> experts) override;
  void leave_layer(std::int64_t layer) override;
  [[nodiscard]] std::optional<ExpertCacheInfo> cache() const override { return info_; }
  [[nodiscard]] ExpertStatistics statistics() const override;

 private:
  class Visit;
  struct Layer {
    std::deque<ExpertSource> sources;  // by expert; they do not move
    ExpertSlots slots;
    std::vector<Visit*> visits;  // open ones, the oldest first
  };

  void open_files();
  void choose_mode();
  double measure(bool is_direct, std::int64_t& next_expert);
  void assign(std::int64_t layer, std::vector<FilePart>& parts);
  void plan_read(std::int64_t layer, std::int32_t expert, std::int32_t slot, std::vector<FilePart>& parts);
  void start(const std::vector<FilePart>& parts);
  void arrived(std::uint64_t tag, int error);
  [[nodiscard]] std::exception_ptr describe(const ExpertExtent& extent, int error) const;
  [[nodiscard]] std::byte* slot_data(std::int64_t layer, std::int32_t slot) const;

  checkpoint::TensorPlaces places_;
  ExpertCacheOptions options_;
  std::function<void(std::int64_t, std::int64_t)> refuse_;
  std::deque<Layer> layers_;
  ExpertCacheInfo info_;
  AnonymousMemory memory_;
  std::map<const MappedFile*, int> direct_files_;

  mutable std::mutex mutex_;  // of all below, the layers' slots and visits
  std::condition_variable changed_;
  ExpertStatistics statistics_;
  int n_reading_ = 0;  // slots
  double reading_since_s_ = 0;

  std::unique_ptr<ReadQueue> queue_;  // last: it ends before what it writes to
};

}  // namespace kalibri::runtime
