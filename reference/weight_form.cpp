#include "reference/weight_form.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/error.hpp"
#include "reference/number_formats.hpp"

namespace kalibri::reference {

void convert_row(const WeightForm& form, std::span<float> row) {
  if (form.kind == WeightForm::Kind::native || form.kind == WeightForm::Kind::f32) return;
  for (float& w : row) w = round_to_bf16(w);
  const auto group_size = static_cast<std::size_t>(form.affine.group_size);
  if (form.kind == WeightForm::Kind::bf16 || row.size() % group_size != 0) return;
  if (!std::ranges::all_of(row, [](float w) { return std::isfinite(w); })) {
    throw Error("a weight is not finite and cannot be quantised");
  }
  std::vector<int> codes(group_size);
  for (std::size_t begin = 0; begin < row.size(); begin += group_size) {
    const std::span<float> group = row.subspan(begin, group_size);
    const AffineGrid grid = quantise_group(group, form.affine.bits, form.rule, codes);
    const float scale = round_to_bf16(grid.scale);
    const float bias = round_to_bf16(grid.bias);
    std::ranges::transform(codes, group.begin(), [&](int code) { return affine_value(code, scale, bias); });
  }
}

}  // namespace kalibri::reference
