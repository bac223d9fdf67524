#include "engine/runtime/ngram_table.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/base/check.hpp"
#include "engine/base/error.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::runtime {

using checkpoint::Dtype;

NgramTable::NgramTable(std::vector<Shard> shards, std::int64_t row_size, float scale)
    : shards_(std::move(shards)), first_rows_{0}, row_size_(row_size), scale_(scale) {
  for (const Shard& shard : shards_) {
    const checkpoint::TensorView& tensor = *shard.tensor;
    if (tensor.shape.size() != 2 || tensor.shape[1] != row_size) {
      throw Error(ErrorCode::tensor, shard.name + ": shape " + checkpoint::shape_text(tensor.shape) +
                                         ", expected [rows, " + std::to_string(row_size) +
                                         "] (ple_embed_dim / n-gram heads)");
    }
    if (tensor.dtype != Dtype::f8_e4m3 && tensor.dtype != Dtype::bf16 && tensor.dtype != Dtype::f32) {
      throw Error(ErrorCode::tensor, shard.name + ": dtype " + std::string(checkpoint::dtype_name(tensor.dtype)) +
                                         ", expected F8_E4M3, BF16 or F32");
    }
    first_rows_.push_back(first_rows_.back() + tensor.shape[0]);
  }
}

void NgramTable::read_row(std::int64_t row, float* out) const {
  KALIBRI_CHECK(row >= 0 && row < n_rows(), "an n-gram row outside the table");
  const auto after = std::upper_bound(first_rows_.begin(), first_rows_.end(), row);
  const auto index = static_cast<std::size_t>(after - first_rows_.begin() - 1);
  const Shard& shard = shards_[KALIBRI_MUTATE(index, "ngram_shards_reversed", shards_.size() - 1 - index)];
  const checkpoint::TensorView& tensor = *shard.tensor;
  const std::size_t row_bytes = static_cast<std::size_t>(row_size_ * checkpoint::dtype_bits(tensor.dtype) / 8);
  std::vector<std::byte> bytes(row_bytes);
  const std::int64_t row_in_shard = std::min(row - first_rows_[index], tensor.shape[0] - 1);
  const auto offset = tensor.file_offset + row_in_shard * static_cast<std::int64_t>(row_bytes);
  for (std::size_t done = 0; done < row_bytes;) {
    const ssize_t n = ::pread(tensor.file->descriptor(), bytes.data() + done, row_bytes - done,
                              offset + static_cast<std::int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw Error(ErrorCode::file, tensor.file->path().string() + ": " + shard.name + ": row " +
                                       std::to_string(row_in_shard) + " cannot be read" +
                                       (n < 0 ? std::string(": ") + std::strerror(errno) : " (file cut short)"));
    }
    done += static_cast<std::size_t>(n);
  }
  switch (tensor.dtype) {
    case Dtype::f32:
      std::memcpy(out, bytes.data(), row_bytes);
      return;
    case Dtype::bf16:
      for (std::int64_t i = 0; i < row_size_; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * i, 2);
        out[i] = kernels::bf16_to_f32(bits);
      }
      return;
    default:
      for (std::int64_t i = 0; i < row_size_; ++i) {
        const float value = kernels::e4m3_to_f32(std::to_integer<std::uint8_t>(bytes[static_cast<std::size_t>(i)]));
        if (std::isnan(value)) {
          throw Error(ErrorCode::tensor, tensor.file->path().string() + ": " + shard.name + ": row " +
                                             std::to_string(row_in_shard) + " holds a NaN code at column " +
                                             std::to_string(i) + "; the file is damaged");
        }
        out[i] = KALIBRI_MUTATE(value * scale_, "ngram_scale_ignored", value);
      }
  }
}

}  // namespace kalibri::runtime
