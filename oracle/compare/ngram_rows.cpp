#include "oracle/compare/ngram_rows.hpp"

#include <algorithm>
#include <vector>

#include "oracle/compare/tensor_difference.hpp"

namespace kalibri::oracle {

std::optional<NgramRows> compare_ngram_rows(const dump::Reader& reference, const dump::Reader& candidate,
                                            const std::string& prompt, std::int64_t layer) {
  const TensorRef ours{reference, prompt, dump::layer_path(layer, "ngram_rows")};
  const TensorRef theirs{candidate, prompt, ours.path};
  if (!reference.find(prompt, ours.path) || !candidate.find(prompt, ours.path)) return std::nullopt;
  const std::vector<std::int64_t> shape = common_shape(ours, theirs);
  const std::int64_t n_heads = shape.at(1);
  const std::vector<std::int64_t> our_rows = reference.read_i64(prompt, ours.path, 0, shape.at(0));
  const std::vector<std::int64_t> their_rows = candidate.read_i64(prompt, ours.path, 0, shape.at(0));
  NgramRows result{shape.at(0), 0, 0};
  for (std::int64_t t = 0; t < result.n_tokens; ++t) {
    const auto our_row = our_rows.begin() + t * n_heads;
    if (std::equal(our_row, our_row + n_heads, their_rows.begin() + t * n_heads)) continue;
    if (result.n_differing++ == 0) result.first_position = t;
  }
  return result;
}

}  // namespace kalibri::oracle
