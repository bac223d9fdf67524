#include "reference/affine_config.hpp"

#include <fmt/format.h>

#include "reference/config_reader.hpp"
#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

/// The values of the block or of a module's entry in it.
AffineFormat read_format(const ConfigReader& object) {
  if (object.has("mode")) object.expect("mode", "affine");
  const AffineFormat format{object.size("bits"), object.size("group_size")};
  if (!exists({format.bits, 32})) object.refuse("bits", "expected 2, 3, 4, 5, 6 or 8");
  if (!exists({4, format.group_size})) object.refuse("group_size", "expected 32, 64 or 128");
  return format;
}

}  // namespace

bool has_affine_block(const Checkpoint& checkpoint) {
  const ConfigReader config(checkpoint);
  if (!config.has("quantization")) return false;
  const ConfigReader block = config.object("quantization");
  read_format(block);
  for (const auto& [key, value] : checkpoint.config().at("quantization").items()) {
    if (key == "bits" || key == "group_size" || key == "mode") continue;
    if (value.is_object()) {
      read_format(block.object(key.c_str()));
    } else if (!value.is_boolean()) {
      block.refuse(key.c_str(), "expected a module's format, true or false");
    }
    if (checkpoint.find(key + ".weight") == nullptr) {
      block.refuse(key.c_str(), fmt::format("there is no such module: no tensor {}.weight", key));
    }
  }
  if (config.has("quantization_config")) {
    const nlohmann::json& repeated = checkpoint.config().at("quantization_config");
    if (repeated != checkpoint.config().at("quantization")) {
      config.refuse("quantization_config", "differs from 'quantization', which it repeats in an MLX directory");
    }
  }
  return true;
}

std::optional<AffineFormat> find_affine_format(const Checkpoint& checkpoint, const std::string& module) {
  const TensorView* weight = checkpoint.find(module + ".weight");
  const bool is_packed = (weight != nullptr && weight->dtype == "U32") ||
                         checkpoint.find(module + ".scales") != nullptr ||
                         checkpoint.find(module + ".biases") != nullptr;
  if (!is_packed) return std::nullopt;
  const ConfigReader config(checkpoint);
  const auto contradict = [&](const char* why) {
    throw Error(fmt::format("{}: {}: is packed, but {}", checkpoint.directory().string(), module, why));
  };
  if (!config.has("quantization")) contradict("config.json has no 'quantization' that says how");
  const ConfigReader block = config.object("quantization");
  if (!block.has(module.c_str())) return read_format(block);
  const nlohmann::json& entry = checkpoint.config().at("quantization").at(module);
  if (entry == false) contradict("config.json's 'quantization' says false of it");
  return read_format(entry == true ? block : block.object(module.c_str()));
}

}  // namespace kalibri::reference
