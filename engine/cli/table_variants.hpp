// The variants of a model that accuracy tables have, each a precision.
#pragma once

#include <string>
#include <vector>

namespace kalibri::cli {

struct TableVariant {
  std::string name;
  std::string precision;  // as --precision has it
};

/// fp32, bf16, 8bit, 4bit, 4bit-g32 and mixed, in this order: those of the published tables of Kolibri 1. The last four
/// quantise the weights as MLX does on the GPU that the published figures are from, and compute in bf16.
const std::vector<TableVariant>& table_variants();

/// The named ones in the order above, all of them for no name. Throws Error(usage) for another name.
std::vector<TableVariant> choose_variants(const std::vector<std::string>& names);

}  // namespace kalibri::cli
