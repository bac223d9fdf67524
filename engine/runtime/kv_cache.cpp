#include "engine/runtime/kv_cache.hpp"

#include <algorithm>
#include <cstring>

#include "engine/base/check.hpp"

namespace kalibri::runtime {

namespace {

AlignedArray allocate(std::int64_t n) { return make_aligned_array(static_cast<std::size_t>(n)); }

void copy_rows(const float* from, float* to, std::int64_t n_floats) {
  std::memcpy(to, from, static_cast<std::size_t>(n_floats) * sizeof(float));
}

}  // namespace

KvCache::KvCache(std::int64_t window, std::int64_t max_tokens, std::int64_t row_size)
    : window_(window),
      capacity_(std::min(window, max_tokens)),
      row_size_(row_size),
      keys_(allocate(capacity_ * row_size)),
      values_(allocate(capacity_ * row_size)) {
  KALIBRI_CHECK(window >= 1 && max_tokens >= 1 && row_size >= 1, "an empty cache");
}

KvCache::KvCache(const KvCache& other) : KvCache(other.window_, other.capacity_, other.row_size_) {
  position_ = other.position_;
  const std::int64_t n_rows = std::min(position_, capacity_);
  copy_rows(other.keys_.get(), keys_.get(), n_rows * row_size_);
  copy_rows(other.values_.get(), values_.get(), n_rows * row_size_);
}

KvCache& KvCache::operator=(const KvCache& other) {
  if (this != &other) *this = KvCache(other);
  return *this;
}

void KvCache::store(const float* keys, const float* values, std::int64_t first_pos, std::int64_t n) {
  const std::int64_t kept = std::min(n, capacity_);  // older rows would be overwritten at once
  for (std::int64_t i = n - kept; i < n; ++i) {
    const std::int64_t slot = (first_pos + i) % capacity_;
    copy_rows(keys + i * row_size_, keys_.get() + slot * row_size_, row_size_);
    copy_rows(values + i * row_size_, values_.get() + slot * row_size_, row_size_);
  }
}

void KvCache::append(const float* keys, const float* values, std::int64_t n, KvStaging& staging) {
  const bool wraps = n > 1 && position_ + n > capacity_;
  staged_ = wraps ? &staging : nullptr;
  if (wraps) {
    const std::int64_t n_old = std::min(position_, window_ - 1);
    staged_first_ = position_ - n_old;
    const auto n_floats = static_cast<std::size_t>((n_old + n) * row_size_);
    staging.keys.resize(std::max(staging.keys.size(), n_floats));
    staging.values.resize(std::max(staging.values.size(), n_floats));
    for (std::int64_t i = 0; i < n_old; ++i) {
      const std::int64_t slot = (staged_first_ + i) % capacity_;
      copy_rows(keys_.get() + slot * row_size_, staging.keys.data() + i * row_size_, row_size_);
      copy_rows(values_.get() + slot * row_size_, staging.values.data() + i * row_size_, row_size_);
    }
    copy_rows(keys, staging.keys.data() + n_old * row_size_, n * row_size_);
    copy_rows(values, staging.values.data() + n_old * row_size_, n * row_size_);
  }
  store(keys, values, position_, n);
  position_ += n;
}

VisibleRows KvCache::visible(std::int64_t pos) const {
  const std::int64_t first_pos = std::max<std::int64_t>(0, pos - window_ + 1);
  const std::int64_t n = pos - first_pos + 1;
  VisibleRows rows;
  rows.first_pos = first_pos;
  if (staged_ != nullptr) {
    const std::int64_t offset = (first_pos - staged_first_) * row_size_;
    rows.runs[0] = {staged_->keys.data() + offset, staged_->values.data() + offset, n};
    return rows;
  }
  const std::int64_t slot = first_pos % capacity_;
  const std::int64_t n_first = std::min(n, capacity_ - slot);
  rows.runs[0] = {keys_.get() + slot * row_size_, values_.get() + slot * row_size_, n_first};
  if (n_first < n) {
    rows.n_runs = 2;
    rows.runs[1] = {keys_.get(), values_.get(), n - n_first};
  }
  return rows;
}

std::span<float> KvCache::key_slots() { return {keys_.get(), static_cast<std::size_t>(capacity_ * row_size_)}; }
std::span<float> KvCache::value_slots() { return {values_.get(), static_cast<std::size_t>(capacity_ * row_size_)}; }

}  // namespace kalibri::runtime
