// Writes safetensors files of what this side makes: trained weights, golden outputs. Small ones: all in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kalibri::reference {

struct StoredTensor {
  std::string name;
  std::string dtype;  // as in the file, for example "BF16"
  std::vector<std::int64_t> shape;
  std::string bytes;
};

/// A file's bytes: the header, then the tensors in their order without a gap.
std::string safetensors_text(const std::vector<StoredTensor>& tensors);

/// Throws Error when the file cannot be written whole.
void write_text(const std::filesystem::path& file, const std::string& text);

}  // namespace kalibri::reference
