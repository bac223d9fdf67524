// config.json's `quantization` block, as mlx-lm writes and reads it: the affine format of each module whose weight is
// stored as packed codes. It knows no tensors. Source: mlx-lm, mlx_lm/utils.py (load_model, quantize_model).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kalibri::checkpoint {

struct AffineFormat {
  std::int32_t bits = 0;        // 2, 3, 4, 5, 6 or 8
  std::int32_t group_size = 0;  // 32, 64 or 128
  bool operator==(const AffineFormat&) const = default;
};

class AffineConfig {
 public:
  /// Nothing when there is no such block. `where` names the file in messages. Throws Error(config) for a format that
  /// there is not, a mode other than affine, a block that is no object, an entry that is neither an object nor true or
  /// false, and a quantization_config beside it that says something else.
  static std::optional<AffineConfig> from_json(const nlohmann::json& config, const std::string& where);

  /// Of a module such as "model.layers.0.self_attn.q_proj": its own entry, otherwise the block's. Nothing: the block
  /// says that it is not quantised.
  [[nodiscard]] std::optional<AffineFormat> of(std::string_view module) const;

  /// The modules that have an entry of their own.
  [[nodiscard]] const std::map<std::string, std::optional<AffineFormat>, std::less<>>& modules() const {
    return modules_;
  }

 private:
  AffineFormat all_;
  std::map<std::string, std::optional<AffineFormat>, std::less<>> modules_;
};

}  // namespace kalibri::checkpoint
