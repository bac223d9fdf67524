// Who of the experts is in use and who has been idle longest: what a limit of bytes needs to know to choose who goes.
// It holds no weights, and one thread at a time may call it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <utility>
#include <vector>

namespace kalibri::runtime {

class ExpertUsage {
 public:
  using Key = std::pair<std::int64_t, std::int64_t>;  // layer, expert

  /// Experts in use count whatever max_bytes says.
  explicit ExpertUsage(std::int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// One more user of an expert that takes n_bytes. Returns those that have to go, the longest idle first.
  std::vector<Key> acquire(const Key& key, std::int64_t n_bytes);
  /// One user less; the same. Of an expert that is not known: nothing.
  std::vector<Key> release(const Key& key);
  /// Forgets the layer's experts, which nobody may be using.
  void leave_layer(std::int64_t layer);

  /// Bytes of the experts that have not gone.
  [[nodiscard]] std::int64_t n_bytes() const { return n_bytes_; }

 private:
  struct Entry {
    std::int64_t n_bytes = 0;
    int n_users = 0;
    std::list<Key>::iterator place = {};  // in idle_, when nobody uses it
  };
  std::vector<Key> evict_beyond_limit();

  std::map<Key, Entry> entries_;
  std::list<Key> idle_;  // longest idle first
  std::int64_t n_bytes_ = 0;
  std::int64_t max_bytes_;
};

}  // namespace kalibri::runtime
