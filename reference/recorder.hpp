// From the run's tensors, in which all prompts' rows lie one after the other, to the dump, which has them by prompt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oracle/dump/writer.hpp"
#include "reference/prompt.hpp"
#include "reference/tensor.hpp"

namespace kalibri::reference {

class Recorder {
 public:
  /// Begins every prompt in `writer`. Of the optional tensors, those named in `taps` are kept. All arguments outlive
  /// it.
  Recorder(dump::Writer& writer, std::span<const Prompt> prompts, std::vector<std::string_view> taps);

  /// Rows [first_row, first_row + rows.size(0)) of the run's tensor `path`, for example "embedding": each prompt's
  /// share is written to that prompt. f32, f64, int32 or int64.
  void write(const std::string& path, std::int64_t first_row, const at::Tensor& rows);
  /// The same for tensor `name` of a layer. A tap that was not asked for is left out.
  void write_layer(std::int64_t layer, std::string_view name, std::int64_t first_row, const at::Tensor& rows);
  /// Rows [first_row, …) of `path` of one prompt, which has n_rows_total there.
  void write_prompt(const Prompt& prompt, const std::string& path, std::int64_t n_rows_total, std::int64_t first_row,
                    const at::Tensor& rows);

 private:
  dump::Writer& writer_;
  std::span<const Prompt> prompts_;
  std::vector<std::string_view> taps_;
};

}  // namespace kalibri::reference
