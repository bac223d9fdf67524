// Routed experts expanded to f32, as many as a limit of bytes allows: a layer of hundreds of large experts is never
// expanded whole. It knows no tensor names.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/runtime/expert_store.hpp"

namespace kalibri::runtime {

class ExpandedExperts {
 public:
  /// Experts in use are held whatever max_bytes says; beyond it the one that has been idle longest goes first.
  explicit ExpandedExperts(std::int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// `stored` with each matrix that is not f32 expanded (row-major). Valid until release(layer, expert). Several
  /// threads may call it at once.
  ExpertWeights acquire(std::int64_t layer, std::int64_t expert, const ExpertWeights& stored);
  void release(std::int64_t layer, std::int64_t expert);
  /// Frees the layer's experts. Nobody may be using them.
  void leave_layer(std::int64_t layer);

  /// Bytes held now.
  [[nodiscard]] std::int64_t n_bytes() const;

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // layer, expert
  struct Entry {
    std::once_flag made;
    std::unique_ptr<float[]> values;
    std::int64_t n_bytes = 0;
    int n_users = 0;
    std::list<Key>::iterator place = {};  // in idle_, when nobody uses it
  };
  void evict_beyond_limit();

  mutable std::mutex mutex_;
  std::map<Key, std::unique_ptr<Entry>> entries_;
  std::list<Key> idle_;  // longest idle first
  std::int64_t n_bytes_ = 0;
  std::int64_t max_bytes_;
};

}  // namespace kalibri::runtime
