#include "oracle/verdict/rounding_unit.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace kalibri::oracle {

namespace {

constexpr double kBf16 = 0x1p-8, kE4m3 = 0x1p-4, kInt8 = 0x1p-6, kInt16 = 0x1p-14;

/// Presets, and keys with their values, that round.
constexpr std::array<std::pair<std::string_view, double>, 10> kRounding = {{{"bf16", kBf16},
                                                                            {"production", kE4m3},
                                                                            {"compute=bf16", kBf16},
                                                                            {"compute=bf16-served", kBf16},
                                                                            {"residual=bf16", kBf16},
                                                                            {"residual=bf16-fused", kBf16},
                                                                            {"activations=fp8-dynamic", kE4m3},
                                                                            {"activations=int16", kInt16},
                                                                            {"activations=int8", kInt8},
                                                                            {"kv=bf16", kBf16}}};

}  // namespace

double rounding_unit(std::string_view precision) {
  double unit = 0;
  for (std::size_t begin = 0; begin <= precision.size();) {
    const std::size_t end = std::min(precision.find(',', begin), precision.size());
    const std::string_view part = precision.substr(begin, end - begin);
    for (const auto& [text, coarseness] : kRounding) {
      if (part == text) unit = std::max(unit, coarseness);
    }
    begin = end + 1;
  }
  return unit;
}

}  // namespace kalibri::oracle
