#include "reference/recorder.hpp"

#include <algorithm>

#include "oracle/dump/names.hpp"
#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

template <typename T>
std::span<const T> elements(const at::Tensor& contiguous) {
  return {contiguous.data_ptr<T>(), static_cast<std::size_t>(contiguous.numel())};
}

}  // namespace

Recorder::Recorder(dump::Writer& writer, std::span<const Prompt> prompts, std::vector<std::string_view> taps)
    : writer_(writer), prompts_(prompts), taps_(std::move(taps)) {
  for (const Prompt& prompt : prompts_) writer_.begin_prompt(prompt.name, prompt.tokens, prompt.text_sha256);
}

void Recorder::write(const std::string& path, std::int64_t first_row, const at::Tensor& rows) {
  const std::int64_t end_row = first_row + rows.size(0);
  for (const Prompt& prompt : prompts_) {
    const std::int64_t begin = std::max(first_row, prompt.first_row);
    const std::int64_t end = std::min(end_row, prompt.end_row());
    if (begin >= end) continue;
    write_prompt(prompt, path, prompt.n_rows(), begin - prompt.first_row,
                 rows.slice(0, begin - first_row, end - first_row));
  }
}

void Recorder::write_layer(std::int64_t layer, std::string_view name, std::int64_t first_row, const at::Tensor& rows) {
  const std::optional<dump::TensorName> tensor = dump::find_layer_tensor(name);
  check(tensor.has_value(), "a layer records tensors of the dump's list only");
  if (tensor->is_tap && std::ranges::find(taps_, name) == taps_.end()) return;
  write(dump::layer_path(layer, name), first_row, rows);
}

void Recorder::write_prompt(const Prompt& prompt, const std::string& path, std::int64_t n_rows_total,
                            std::int64_t first_row, const at::Tensor& rows) {
  const std::vector<std::int64_t> row_dims(rows.sizes().begin() + 1, rows.sizes().end());
  const at::Tensor data = rows.contiguous();
  writer_.select_prompt(prompt.name);
  if (data.scalar_type() == at::kFloat) {
    writer_.write_rows(path, n_rows_total, row_dims, first_row, elements<float>(data));
  } else if (data.scalar_type() == at::kDouble) {
    writer_.write_rows(path, n_rows_total, row_dims, first_row, elements<double>(data));
  } else if (data.scalar_type() == at::kLong) {
    writer_.write_rows(path, n_rows_total, row_dims, first_row, elements<std::int64_t>(data));
  } else {
    check(data.scalar_type() == at::kInt, "a recorded tensor is f32, f64, int32 or int64");
    writer_.write_rows(path, n_rows_total, row_dims, first_row, elements<std::int32_t>(data));
  }
}

}  // namespace kalibri::reference
