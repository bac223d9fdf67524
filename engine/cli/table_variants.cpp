#include "engine/cli/table_variants.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/error.hpp"

namespace kalibri::cli {

namespace {

/// bf16 arithmetic over affine weights: BITS:GROUP of the routed experts and of everything else.
std::string quantised(const std::string& experts, const std::string& others) {
  return fmt::format(
      "compute=bf16,residual=bf16,dense=affine:{0}:gpu,experts=affine:{1}:gpu,embed=affine:{0}:gpu,"
      "head=affine:{0}:gpu,kv=bf16",
      others, experts);
}

}  // namespace

const std::vector<TableVariant>& table_variants() {
  static const std::vector<TableVariant> variants = {{"fp32", "exact"},
                                                     {"bf16", "bf16"},
                                                     {"8bit", quantised("8:64", "8:64")},
                                                     {"4bit", quantised("4:64", "4:64")},
                                                     {"4bit-g32", quantised("4:32", "4:32")},
                                                     {"mixed", quantised("4:64", "8:64")}};
  return variants;
}

std::vector<TableVariant> choose_variants(const std::vector<std::string>& names) {
  std::vector<TableVariant> chosen;
  std::vector<std::string> known, unknown = names;
  for (const TableVariant& variant : table_variants()) {
    known.push_back(variant.name);
    if (names.empty() || std::find(names.begin(), names.end(), variant.name) != names.end()) chosen.push_back(variant);
    std::erase(unknown, variant.name);
  }
  if (!unknown.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("--variants: '{}' is not known; use {}", unknown.front(), fmt::join(known, ", ")));
  }
  return chosen;
}

}  // namespace kalibri::cli
