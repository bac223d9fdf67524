// A copy of a small checkpoint that a test may damage.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "fixtures/temp_directory.hpp"

namespace kalibri::reference::test {

class CheckpointCopy {
 public:
  /// Copies config.json and model.safetensors of `from`.
  explicit CheckpointCopy(const std::filesystem::path& from);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_.path(); }

  void edit_config(const std::function<void(nlohmann::json&)>& edit) const;
  /// Changes model.safetensors' header and leaves its data.
  void edit_header(const std::function<void(nlohmann::json&)>& edit) const;
  /// Sets byte `i` of tensor `name` to what `edit` makes of it.
  void edit_byte(const std::string& name, std::size_t i, const std::function<unsigned char(unsigned char)>& edit) const;

 private:
  [[nodiscard]] std::filesystem::path weights() const { return directory_.path() / "model.safetensors"; }

  fixtures::TempDirectory directory_;
};

}  // namespace kalibri::reference::test
