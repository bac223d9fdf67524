#include "engine/runtime/expert_usage.hpp"

#include "engine/base/check.hpp"

namespace kalibri::runtime {

std::vector<ExpertUsage::Key> ExpertUsage::acquire(const Key& key, std::int64_t n_bytes) {
  const auto [found, is_new] = entries_.try_emplace(key, Entry{n_bytes});
  Entry& entry = found->second;
  if (is_new) {
    n_bytes_ += n_bytes;
  } else if (entry.n_users == 0) {
    idle_.erase(entry.place);
  }
  ++entry.n_users;
  return evict_beyond_limit();
}

std::vector<ExpertUsage::Key> ExpertUsage::release(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return {};
  Entry& entry = found->second;
  KALIBRI_CHECK(entry.n_users > 0, "an expert is released as often as it was acquired");
  if (--entry.n_users == 0) entry.place = idle_.insert(idle_.end(), key);
  return evict_beyond_limit();
}

void ExpertUsage::leave_layer(std::int64_t layer) {
  for (auto entry = entries_.lower_bound({layer, 0}); entry != entries_.end() && entry->first.first == layer;) {
    n_bytes_ -= entry->second.n_bytes;
    if (entry->second.n_users == 0) idle_.erase(entry->second.place);
    entry = entries_.erase(entry);
  }
}

std::vector<ExpertUsage::Key> ExpertUsage::evict_beyond_limit() {
  std::vector<Key> gone;
  while (n_bytes_ > max_bytes_ && !idle_.empty()) {
    const auto entry = entries_.find(idle_.front());
    n_bytes_ -= entry->second.n_bytes;
    gone.push_back(entry->first);
    entries_.erase(entry);
    idle_.pop_front();
  }
  return gone;
}

}  // namespace kalibri::runtime
