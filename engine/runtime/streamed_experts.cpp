#include "engine/runtime/streamed_experts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/base/check.hpp"
#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"

namespace kalibri::runtime {

namespace {

// A part's tag: which extent of the expert that is read into which slot of which layer.
constexpr int kExtentBits = 8;
constexpr int kSlotBits = 24;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

/// Each of its experts gets a slot at once or, where all are in use, as soon as one is free, in order.
class StreamedExperts::Visit final : public ExpertVisit {
 public:
  Visit(StreamedExperts& store, std::int64_t layer, std::vector<std::int32_t> experts) : store_(store), layer_(layer) {
    for (const std::int32_t expert : experts) wanted_.push_back({expert});
    std::vector<FilePart> parts;
    {
      const std::lock_guard lock(store_.mutex_);
      here().visits.push_back(this);
      store_.assign(layer_, parts);
    }
    store_.start(parts);
  }

  ~Visit() override {
    end([&](Layer& layer) {
      for (Wanted& wanted : wanted_) {
        if (wanted.slot != ExpertSlots::kNone) layer.slots.let_go(wanted.slot);
      }
      std::erase(layer.visits, this);
    });
  }

  Taken take() override {
    const std::size_t index = take_slot();
    try {
      const auto expert = wanted_[index].expert;
      ExpertSource& source = here().sources[static_cast<std::size_t>(expert)];
      return {index, source.in_slot(store_.slot_data(layer_, wanted_[index].slot), [&] {
                store_.refuse_(layer_, expert);
                const ExpertExtent& extent = source.extents().front();
                throw Error(ErrorCode::file, fmt::format("{}: {}: has changed while it was in use",
                                                         extent.file->path().string(), extent.tensor));
              })};
    } catch (...) {
      give_back(index);  // others may be waiting for the slot
      throw;
    }
  }

  void give_back(std::size_t index) override {
    end([&](Layer& layer) {
      layer.slots.let_go(wanted_[index].slot);
      wanted_[index].slot = ExpertSlots::kNone;
    });
  }

  /// The index of an expert that has been read. Throws why it could not be.
  std::size_t take_slot() {
    std::unique_lock lock(store_.mutex_);
    ExpertSlots& slots = here().slots;
    const auto is_ready = [&](const Wanted& wanted) {
      return !wanted.is_taken && wanted.slot != ExpertSlots::kNone && slots[wanted.slot].n_parts == 0;
    };
    auto ready = std::ranges::find_if(wanted_, is_ready);
    if (ready == wanted_.end()) {
      const double start_s = now_s();
      store_.changed_.wait(lock, [&] {
        ready = std::ranges::find_if(wanted_, is_ready);
        return ready != wanted_.end();
      });
      store_.statistics_.wait_s += now_s() - start_s;
    }
    ready->is_taken = true;
    const auto index = static_cast<std::size_t>(ready - wanted_.begin());
    if (const std::exception_ptr error = slots[ready->slot].error) {
      lock.unlock();
      give_back(index);
      std::rethrow_exception(error);
    }
    return index;
  }

  struct Wanted {
    std::int32_t expert = 0;
    std::int32_t slot = ExpertSlots::kNone;
    bool is_taken = false;
  };
  /// In the order in which they get slots.
  std::vector<Wanted>& wanted() { return wanted_; }

 private:
  [[nodiscard]] Layer& here() { return store_.layers_[static_cast<std::size_t>(layer_)]; }

  /// Lets go of slots, which may be what others wait for.
  template <typename LetGo>
  void end(LetGo&& let_go) {
    std::vector<FilePart> parts;
    {
      const std::lock_guard lock(store_.mutex_);
      let_go(here());
      store_.assign(layer_, parts);
    }
    store_.start(parts);
  }

  StreamedExperts& store_;
  std::int64_t layer_;
  std::vector<Wanted> wanted_;
};

StreamedExperts::StreamedExperts(const std::vector<std::vector<ExpertWeights>>& stored, checkpoint::TensorPlaces places,
                                 const ExpertCacheOptions& options,
                                 std::function<void(std::int64_t layer, std::int64_t expert)> refuse)
    : places_(std::move(places)), options_(options), refuse_(std::move(refuse)) {
  std::size_t slot_bytes = 0;
  info_.n_layers = static_cast<std::int64_t>(stored.size());
  info_.n_experts = static_cast<std::int64_t>(stored.front().size());
  for (const std::vector<ExpertWeights>& experts : stored) {
    Layer& layer = layers_.emplace_back();
    for (const ExpertWeights& expert : experts) {
      slot_bytes = std::max(slot_bytes, layer.sources.emplace_back(expert, places_).slot_bytes());
    }
  }
  info_.slot_bytes = static_cast<std::int64_t>(slot_bytes);
  info_.n_slots = options.n_slots;
  if (options.n_slots == 0) {
    info_.n_slots = options.n_bytes / (info_.n_layers * info_.slot_bytes);
    if (info_.n_slots == 0) {
      throw Error(ErrorCode::usage,
                  fmt::format("an expert cache of {} bytes: expected at least {}, room for one expert "
                              "in each of {} layers",
                              options.n_bytes, info_.n_layers * info_.slot_bytes, info_.n_layers));
    }
  }
  info_.n_slots = std::min(info_.n_slots, info_.n_experts);
  for (Layer& layer : layers_) layer.slots = {info_.n_experts, info_.n_slots};
  memory_ = AnonymousMemory(static_cast<std::size_t>(info_.n_layers * info_.n_slots) * slot_bytes);
  queue_ = make_read_queue(options.engine, [this](std::uint64_t tag, int error) { arrived(tag, error); });
  info_.engine = queue_->name();
  if (options.mode != ReadMode::buffered) open_files();
  if (options.mode == ReadMode::automatic) choose_mode();
}

StreamedExperts::~StreamedExperts() {
  queue_.reset();
  for (const auto& [file, descriptor] : direct_files_) ::close(descriptor);
}

std::unique_ptr<ExpertVisit> StreamedExperts::visit(std::int64_t layer, std::vector<std::int32_t> experts) {
  return std::make_unique<Visit>(*this, layer, std::move(experts));
}

void StreamedExperts::leave_layer(std::int64_t layer) {
  const std::lock_guard lock(mutex_);
  if (!layers_[static_cast<std::size_t>(layer)].slots.clear()) return;
  forget_pages({slot_data(layer, 0), static_cast<std::size_t>(info_.n_slots * info_.slot_bytes)});
}

ExpertStatistics StreamedExperts::statistics() const {
  const std::lock_guard lock(mutex_);
  ExpertStatistics statistics = statistics_;
  if (n_reading_ > 0) statistics.read_s += now_s() - reading_since_s_;
  return statistics;
}

/// Descriptors past the page cache, of every file or of none.
void StreamedExperts::open_files() {
  info_.is_direct = true;
  for (const Layer& layer : layers_) {
    for (const ExpertSource& source : layer.sources) {
      for (const ExpertExtent& extent : source.extents()) {
        if (direct_files_.contains(extent.file)) continue;
        const int descriptor = extent.file->open_direct();
        if (descriptor >= 0) {
          direct_files_.emplace(extent.file, descriptor);
          continue;
        }
        if (options_.mode == ReadMode::direct) {
          throw Error(ErrorCode::usage, fmt::format("{}: its file system has no direct reads; take buffered ones",
                                                    extent.file->path().string()));
        }
        info_.is_direct = false;
        return;
      }
    }
  }
}

/// Reads some experts this way and some that way, in turn. Where direct reads fail, buffered ones are left.
void StreamedExperts::choose_mode() {
  if (!info_.is_direct) return;
  constexpr double kPatience_s = 0.5;
  constexpr int kRounds = 8;
  double seconds[2] = {};
  std::int64_t bytes[2] = {};
  std::int64_t next_expert = 0;
  const double start_s = now_s();
  for (int round = 0; round < kRounds && now_s() - start_s < kPatience_s; ++round) {
    for (const bool is_direct : {false, true}) {
      const std::int64_t before = statistics_.bytes_read;
      try {
        seconds[is_direct ? 1 : 0] += measure(is_direct, next_expert);
      } catch (const Error&) {
        if (!is_direct) throw;
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return n_reading_ == 0; });  // the others fail as well
        info_.is_direct = false;
        statistics_ = {};
        return;
      }
      bytes[is_direct ? 1 : 0] += statistics_.bytes_read - before;
    }
  }
  info_.buffered_rate = static_cast<double>(bytes[0]) / seconds[0];
  info_.direct_rate = static_cast<double>(bytes[1]) / seconds[1];
  info_.is_direct = info_.direct_rate > info_.buffered_rate;
  statistics_ = {};
}

/// Seconds that it takes to read a few experts that were not read before, all over the files.
double StreamedExperts::measure(bool is_direct, std::int64_t& next_expert) {
  constexpr std::int64_t kAtOnce = 4;
  info_.is_direct = is_direct;
  const std::int64_t layer = next_expert * 7 % info_.n_layers;
  std::vector<std::int32_t> experts;
  for (std::int64_t i = 0; i < std::min({kAtOnce, info_.n_slots}); ++i) {
    experts.push_back(static_cast<std::int32_t>(next_expert++ % info_.n_experts));
  }
  const double start_s = now_s();
  {
    Visit visit(*this, layer, experts);
    for (std::size_t i = 0; i < experts.size(); ++i) visit.take_slot();
  }
  const double seconds = now_s() - start_s;
  leave_layer(layer);
  return seconds;
}

/// Gives slots to experts that have none, as far as there are any, and plans the reads. Under the mutex.
void StreamedExperts::assign(std::int64_t index, std::vector<FilePart>& parts) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  for (Visit* visit : layer.visits) {
    for (Visit::Wanted& wanted : visit->wanted()) {  // those that are here first: reading must not drive them out
      if (wanted.slot != ExpertSlots::kNone || wanted.is_taken) continue;
      wanted.slot = layer.slots.find(wanted.expert);
      if (wanted.slot != ExpertSlots::kNone) ++statistics_.n_hits;
    }
    for (Visit::Wanted& wanted : visit->wanted()) {
      if (wanted.slot != ExpertSlots::kNone || wanted.is_taken) continue;
      wanted.slot = layer.slots.claim(wanted.expert);
      if (wanted.slot == ExpertSlots::kNone) break;
      ++statistics_.n_misses;
      plan_read(index, wanted.expert, wanted.slot, parts);
    }
  }
  changed_.notify_all();
}

void StreamedExperts::plan_read(std::int64_t layer, std::int32_t expert, std::int32_t slot,
                                std::vector<FilePart>& parts) {
  Layer& there = layers_[static_cast<std::size_t>(layer)];
  const std::vector<ExpertExtent>& extents = there.sources[static_cast<std::size_t>(expert)].extents();
  there.slots[slot].n_parts = static_cast<int>(extents.size());
  if (n_reading_++ == 0) reading_since_s_ = now_s();
  std::byte* to = slot_data(layer, slot);
  const auto tag = static_cast<std::uint64_t>(layer) << (kSlotBits + kExtentBits) | static_cast<std::uint64_t>(slot)
                                                                                        << kExtentBits;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const ExpertExtent& extent = extents[i];
    FilePart part{.descriptor = extent.file->descriptor(),
                  .offset = extent.offset,
                  .to = to + extent.slot_offset,
                  .n_bytes = extent.n_bytes,
                  .n_needed = extent.n_bytes,
                  .tag = tag | i};
    if (info_.is_direct) {  // whole blocks
      const std::size_t lead = extent.offset % kDirectBlock;
      part.descriptor = direct_files_.at(extent.file);
      part.offset -= lead;
      part.to -= lead;
      part.n_needed += lead;
      part.is_direct = true;
      part.n_bytes = (part.n_needed + kDirectBlock - 1) / kDirectBlock * kDirectBlock;
    }
    statistics_.bytes_read += static_cast<std::int64_t>(part.n_bytes);
    parts.push_back(part);
  }
}

/// Begins to read. Who computes waits for that, and where it reads itself, for all of it.
void StreamedExperts::start(const std::vector<FilePart>& parts) {
  if (parts.empty()) return;
  const double start_s = now_s();
  queue_->start(parts);
  const double seconds = now_s() - start_s;
  const std::lock_guard lock(mutex_);
  statistics_.wait_s += seconds;
}

void StreamedExperts::arrived(std::uint64_t tag, int error) {
  const auto slot = static_cast<std::int32_t>(tag >> kExtentBits & ((1U << kSlotBits) - 1));
  const auto index = static_cast<std::int64_t>(tag >> (kSlotBits + kExtentBits));
  std::unique_lock lock(mutex_);
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  std::exception_ptr why;
  if (error != 0) {
    const auto expert = static_cast<std::size_t>(layer.slots[slot].expert);
    why = describe(layer.sources[expert].extents()[tag & ((1U << kExtentBits) - 1)], error);
  }
  if (!layer.slots.arrived(slot, why)) return;
  if (--n_reading_ == 0) statistics_.read_s += now_s() - reading_since_s_;
  std::vector<FilePart> parts;
  assign(index, parts);  // a visit that ended early may have left this slot to another one
  lock.unlock();
  if (!parts.empty()) queue_->start(parts);
}

std::exception_ptr StreamedExperts::describe(const ExpertExtent& extent, int error) const {
  const std::string what = error == ReadQueue::kEnded ? "the file has become shorter" : std::strerror(error);
  return std::make_exception_ptr(
      Error(ErrorCode::file, fmt::format("{}: {}: bytes {} to {} cannot be read: {}", extent.file->path().string(),
                                         extent.tensor, extent.offset, extent.offset + extent.n_bytes, what)));
}

std::byte* StreamedExperts::slot_data(std::int64_t layer, std::int32_t slot) const {
  return memory_.data() + (layer * info_.n_slots + slot) * info_.slot_bytes;
}

}  // namespace kalibri::runtime
