#include "reference/inputs.hpp"

#include <algorithm>

#include "oracle/dump/names.hpp"
#include "reference/error.hpp"
#include "reference/safetensors.hpp"

namespace kalibri::reference {
namespace {

constexpr std::int64_t kBlockRows = 1024;

std::string path_before(std::int64_t layer) {
  return layer == 0 ? "embedding" : dump::layer_path(layer - 1, "residual");
}

}  // namespace

Inputs::Inputs(const std::filesystem::path& path, std::span<const Prompt> prompts, LayerRange layers,
               bool with_last_residual, std::int64_t n_streams, std::int64_t hidden_size)
    : reader_(path), prompts_(prompts), n_streams_(n_streams), hidden_size_(hidden_size) {
  for (const Prompt& prompt : prompts_) {
    const std::string where = path.string() + ": prompt '" + prompt.name + "'";
    const dump::PromptInfo* info = reader_.find_prompt(prompt.name);
    if (info == nullptr) throw Error(where + ": missing, expected as an input");
    if (info->tokens != prompt.tokens) throw Error(where + ": its tokens differ from the token file's");
    for (std::int64_t layer = layers.first; layer < layers.end + (with_last_residual ? 1 : 0); ++layer) {
      const std::optional<dump::DatasetInfo> found = reader_.find(prompt.name, path_before(layer));
      if (!found) throw Error(where + ": has no " + path_before(layer) + ", expected as an input");
      const std::vector<std::int64_t> expected{prompt.n_rows(), width_before(layer)};
      if (found->shape != expected) {
        throw Error(where + ": " + path_before(layer) + ": shape " + shape_text(found->shape) + ", expected " +
                    shape_text(expected));
      }
    }
  }
}

at::Tensor Inputs::residual_before(std::int64_t layer, at::ScalarType dtype) const {
  const std::int64_t width = width_before(layer);
  at::Tensor residual = at::empty({count_rows(prompts_), width}, dtype);
  for (const Prompt& prompt : prompts_) {
    for (std::int64_t row = 0; row < prompt.n_rows(); row += kBlockRows) {
      const std::int64_t n_rows = std::min(kBlockRows, prompt.n_rows() - row);
      std::vector<double> block = reader_.read_f64(prompt.name, path_before(layer), row, n_rows);
      residual.narrow(0, prompt.first_row + row, n_rows)
          .copy_(at::from_blob(block.data(), {n_rows, width}, at::kDouble));
    }
  }
  return layer == 0 ? residual.repeat({1, n_streams_}) : residual;
}

}  // namespace kalibri::reference
