// One safetensors file, mapped: every claim of its header is checked before anything is read by it. It knows the
// format, not what any tensor is for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/mapped_file.hpp"

namespace kalibri::reference {

/// A tensor where it lies in its file; valid as long as the file is open.
struct TensorView {
  std::string name;
  std::string file;   // for messages
  std::string dtype;  // as in the header: "BF16", "F32", "F8_E4M3", …
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // row-major, exactly the size that dtype and shape ask for
};

/// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

class SafetensorsFile {
 public:
  /// Throws Error naming the file, and the tensor where one is at fault: header longer than the file or no JSON object,
  /// a name twice, unknown dtype, size that overflows, shape and byte range that disagree, byte range outside the file,
  /// overlapping ranges, bytes that belong to no tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return file_.bytes(); }
  [[nodiscard]] std::span<const std::byte> header() const { return header_; }
  [[nodiscard]] std::span<const std::byte> data() const { return data_; }
  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  std::string name_;  // without folders
  MappedFile file_;
  std::span<const std::byte> header_;  // the JSON text, with its padding
  std::span<const std::byte> data_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace kalibri::reference
