// The n-gram embedding table where it lies: up to 51 billion values in many shards, of which a token reads sixteen
// short rows. Rows are read from the files by position, never mapped into memory as a whole, so the table costs no
// memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"

namespace kalibri::runtime {

class NgramTable {
 public:
  /// One shard [rows, row_size], f8_e4m3 (times `scale`), bf16 or f32; shards follow one another in this order.
  struct Shard {
    std::string name;
    const checkpoint::TensorView* tensor = nullptr;
  };
  /// Throws Error(tensor) when a shard is no matrix of row_size columns or has a dtype that is not known.
  NgramTable(std::vector<Shard> shards, std::int64_t row_size, float scale);

  [[nodiscard]] std::int64_t n_rows() const { return first_rows_.back(); }
  [[nodiscard]] std::int64_t row_size() const { return row_size_; }

  /// out [row_size] <- row `row`, 0 <= row < n_rows(): fl(e4m3(code) * scale), or the stored value.
  /// Throws Error(tensor) for a NaN code, naming shard and row, and Error(file) when it cannot be read.
  void read_row(std::int64_t row, float* out) const;

 private:
  std::vector<Shard> shards_;
  std::vector<std::int64_t> first_rows_;  // prefix sums of the shards' row counts, with the total at the end
  std::int64_t row_size_;
  float scale_;
};

}  // namespace kalibri::runtime
