#include "engine/checkpoint/affine_config.hpp"

#include <fmt/format.h>

#include "engine/base/error.hpp"
#include "engine/checkpoint/config_reader.hpp"
#include "engine/checkpoint/json.hpp"
#include "engine/kernels/affine_codec.hpp"

namespace kalibri::checkpoint {

namespace {

AffineFormat read_format(ConfigReader& reader) {
  const std::int64_t bits = reader.integer("bits", INT32_MIN, INT32_MAX);
  if (!kernels::is_affine_bits(bits)) reader.fail("bits", fmt::format("{}, expected 2, 3, 4, 5, 6 or 8", bits));
  const std::int64_t group_size = reader.integer("group_size", INT32_MIN, INT32_MAX);
  if (!kernels::is_affine_group(group_size)) {
    reader.fail("group_size", fmt::format("{}, expected 32, 64 or 128", group_size));
  }
  if (reader.has("mode")) reader.must_be("mode", "affine", "no other mode of quantisation is read");
  return {static_cast<std::int32_t>(bits), static_cast<std::int32_t>(group_size)};
}

}  // namespace

std::optional<AffineConfig> AffineConfig::from_json(const nlohmann::json& config, const std::string& where) {
  const auto block = config.find("quantization");
  if (block == config.end() || block->is_null()) return std::nullopt;
  if (!block->is_object()) {
    ConfigReader(config, where)
        .fail("quantization", fmt::format("{}, expected an object with bits and group_size", printable(block->dump())));
  }
  const auto other = config.find("quantization_config");
  if (other != config.end() && !other->is_null() && *other != *block) {
    throw Error(ErrorCode::config, where +
                                       ": quantization_config: differs from quantization; a checkpoint is stored in "
                                       "one format: remove the block that is not its own");
  }
  AffineConfig result;
  ConfigReader reader(*block, where, "quantization.");
  result.all_ = read_format(reader);
  for (const auto& [module, entry] : block->items()) {
    if (module == "bits" || module == "group_size" || module == "mode") continue;
    const std::string prefix = fmt::format("quantization.{}.", printable(module));
    if (entry.is_object()) {
      ConfigReader own(entry, where, prefix);
      result.modules_[module] = read_format(own);
    } else if (entry.is_boolean()) {
      result.modules_[module] = entry.get<bool>() ? std::optional(result.all_) : std::nullopt;
    } else {
      reader.fail(printable(module), "expected an object with bits and group_size, or true or false");
    }
  }
  return result;
}

std::optional<AffineFormat> AffineConfig::of(std::string_view module) const {
  const auto own = modules_.find(module);
  return own != modules_.end() ? own->second : std::optional(all_);
}

}  // namespace kalibri::checkpoint
