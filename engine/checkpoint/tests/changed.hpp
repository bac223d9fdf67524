// A copy of a golden checkpoint in which things can be changed before it is looked at.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/inventory.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri::checkpoint {

struct Changed {
  std::map<std::string, fixtures::StoredTensor> tensors;
  nlohmann::json config;

  static std::optional<Changed> golden(const std::string& set) {
    const auto directory = fixtures::find_golden(set);
    if (!directory) return std::nullopt;
    return Changed{fixtures::read_safetensors(*directory / "model.safetensors"),
                   nlohmann::json::parse(fixtures::read_file(*directory / "config.json"))};
  }

  void write(const std::filesystem::path& directory) const {
    std::vector<fixtures::TensorDeclaration> declarations;
    for (const auto& [name, tensor] : tensors) declarations.push_back({name, tensor.dtype, tensor.shape});
    fixtures::SafetensorsWriter writer(directory / "model.safetensors", declarations);
    for (const auto& [name, tensor] : tensors) writer.write(tensor.bytes);
    writer.close();
    fixtures::write_file(directory / "config.json", config.dump());
  }

  [[nodiscard]] Inventory take(bool check_values = false) const {
    const fixtures::TempDirectory directory;
    write(directory.path());
    return take_inventory(Checkpoint::open(directory.path()), check_values);
  }
};

#define REQUIRE_GOLDEN(changed, set)                          \
  auto changed##_or_none = Changed::golden(set);              \
  if (!changed##_or_none) KALIBRI_SKIP("golden set missing"); \
  Changed& changed = *changed##_or_none

}  // namespace kalibri::checkpoint
