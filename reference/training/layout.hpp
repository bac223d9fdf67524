// What a trained model's checkpoint consists of: enough for the exporter, which knows no family and no arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/training/parameters.hpp"

namespace kalibri::reference::training {

/// How a tensor is stored: fp8 with a scale for each block of 128 x 128, or in shards with one scale for all of it.
enum class Format { bf16, fp8, fp8_one_scale };

struct Layout {
  ParameterTable table;
  std::function<Format(const Parameter&)> format;
  std::string scale_dtype;                                     // F32 or BF16
  std::int64_t n_table_shards = 1;                             // of what has one scale
  std::map<std::string, std::vector<std::int64_t>> constants;  // I64 tensors
  std::string config_json, generation_config_json;
};

}  // namespace kalibri::reference::training
