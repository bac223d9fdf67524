// One safetensors file, mapped. Every claim of its header is checked before anything is used: length, JSON, duplicate
// names, dtypes, shapes, offsets, overlaps, gaps. It knows nothing of models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/mapped_file.hpp"

namespace kalibri::checkpoint {

/// All dtypes of the file format: a tensor that nobody asks for may have any of them. A name outside this list makes
/// the file unreadable, because the tensor's size cannot be checked.
enum class Dtype : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f6_e2m3,
  f6_e3m2,
  f4,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  c64
};

/// Bits of one element (the smallest types share bytes).
std::int64_t dtype_bits(Dtype dtype);
/// The name in the file format, for example "F8_E4M3".
std::string_view dtype_name(Dtype dtype);

/// A tensor where it lies in a mapped file. Row-major, not necessarily aligned.
struct TensorView {
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::int64_t file_offset = 0;  // of bytes, in the file
  const MappedFile* file = nullptr;

  /// Product of the shape; it was checked to fit.
  [[nodiscard]] std::int64_t n_elements() const;
};

/// "[384, 2560]", for messages.
std::string shape_text(std::span<const std::int64_t> shape);

class SafetensorsFile {
 public:
  using TensorMap = std::map<std::string, TensorView, std::less<>>;

  /// Maps and validates. The file is: 8 bytes little-endian header length (at most 100,000,000), the JSON header, the
  /// data; the tensors fill the data without overlap or gap. Throws Error(file | format) naming the file, the tensor
  /// and the violated rule.
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const TensorMap& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const MappedFile& file() const { return *file_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_->path(); }
  /// The JSON header as it stands in the file, padding included.
  [[nodiscard]] std::span<const std::byte> header() const { return header_; }
  /// What follows the header.
  [[nodiscard]] std::span<const std::byte> data() const { return data_; }
  /// The whole file.
  [[nodiscard]] std::span<const std::byte> bytes() const { return file_->bytes(); }

 private:
  std::unique_ptr<MappedFile> file_;  // stable address: TensorView points to it
  std::span<const std::byte> header_;
  std::span<const std::byte> data_;
  TensorMap tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace kalibri::checkpoint
