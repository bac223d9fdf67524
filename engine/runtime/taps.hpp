// Where a running model hands out what it computes. A tap costs one null check when nobody listens. The engine does not
// know what becomes of the values; names are those of oracle/dump's list (a test compares them).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kalibri::runtime {

/// Rows of one tensor, for the tokens at positions [first_pos, first_pos + n_rows).
template <typename T>
struct TapRows {
  int layer = 0;          // -1 for tensors of no layer (embedding, final_norm, logits)
  std::string_view name;  // dataset or tap name, for example "residual", "attention_out"
  std::int64_t first_pos = 0;
  std::int64_t n_rows = 0;
  std::span<const std::int64_t> dims;  // of one row
  const T* data = nullptr;             // [n_rows, dims...]
};

class TapSink {
 public:
  virtual ~TapSink() = default;
  /// Whether `name` of `layer` is wanted; asked before anything is computed only for it.
  [[nodiscard]] virtual bool wants(int layer, std::string_view name) const = 0;
  virtual void take(const TapRows<float>& rows) = 0;
  virtual void take(const TapRows<std::int32_t>& rows) = 0;
  virtual void take(const TapRows<std::int64_t>& rows) = 0;
};

}  // namespace kalibri::runtime
