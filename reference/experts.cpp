#include "reference/experts.hpp"

#include <tuple>
#include <vector>

namespace kalibri::reference {

at::Tensor swiglu(const Rounding& r, const at::Tensor& x, const Expert& expert) {
  const at::Tensor gate = r(r.linear(expert.gate_proj)(x));
  const at::Tensor up = r(r.linear(expert.up_proj)(x));
  return r(r.linear(expert.down_proj)(r(r(at::silu(gate)) * up)));
}

Selection select_top(const at::Tensor& scores, std::int64_t k) {
  const auto [sorted, ids] = at::sort(scores, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  Selection selection{ids.narrow(-1, 0, k).contiguous(), {}};
  if (k < scores.size(-1)) selection.gap = sorted.select(-1, k - 1) - sorted.select(-1, k);
  return selection;
}

at::Tensor routed_sum(const Rounding& r, const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights,
                      std::span<const Expert> experts) {
  const std::int64_t k = ids.size(1);
  std::vector<std::vector<std::int64_t>> choices(experts.size());  // by expert: places in [T * k]
  const at::Tensor flat_ids = ids.contiguous();
  for (std::int64_t place = 0; place < flat_ids.numel(); ++place) {
    choices[static_cast<std::size_t>(flat_ids.data_ptr<std::int64_t>()[place])].push_back(place);
  }
  at::Tensor sum = at::zeros_like(x);
  for (std::size_t e = 0; e < experts.size(); ++e) {
    if (choices[e].empty()) continue;
    const at::Tensor places = at::tensor(choices[e], at::kLong);
    const at::Tensor rows = at::div(places, k, "floor");
    const at::Tensor w = weights.reshape({-1, 1}).index_select(0, places);
    sum.index_add_(0, rows, r.unless_served(w * swiglu(r, x.index_select(0, rows), experts[e])));
  }
  return r(sum);
}

}  // namespace kalibri::reference
