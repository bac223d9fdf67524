#include "engine/runtime/linear.hpp"

#include <algorithm>

namespace kalibri::runtime {

using kernels::MatrixView;

void Workers::rows(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t)>& task) {
  const std::int64_t n_runs = (n + grain - 1) / grain;
  each(n_runs, [&](std::int64_t run, int) {
    const std::int64_t end = std::min(n, (run + 1) * grain);
    for (std::int64_t i = run * grain; i < end; ++i) task(i);
  });
}

void Workers::round_rows(float* x, std::int64_t n_rows, std::int64_t width) {
  if (!arithmetic_.rounds()) return;
  rows(n_rows, 16, [&](std::int64_t t) { kernels::round_to_bf16(x + t * width, width); });
}

namespace {

constexpr std::int64_t kTokensPerPack = 16 * kernels::kTokenTile;
constexpr std::size_t kFloatsPerLine = 16;

/// How one product's activations are laid out and multiplied with: as floats, quantised to FP8 or not, or as integers.
class Product {
 public:
  Product(const Arithmetic& arithmetic, const MatrixView& w, const float* x, std::int64_t n_tokens)
      : table_(kernels::kernels()), w_(w), x_(x), n_tokens_(n_tokens) {
    const bool is_affine = w.format == kernels::Format::affine;
    if (is_affine && arithmetic.activations == Arithmetic::Activations::int16) max_code_ = 32767;
    if (is_affine && arithmetic.activations == Arithmetic::Activations::int8) max_code_ = 127;
    is_fp8_ = arithmetic.activations == Arithmetic::Activations::fp8_dynamic && w.format == kernels::Format::e4m3_block;
  }

  /// Floats of room for the packed activations.
  [[nodiscard]] std::size_t packed_size() const {
    const std::size_t n_floats =
        max_code_ > 0 ? (table_.packed_integers_size(w_, n_tokens_) + 3) / 4 : table_.packed_size(n_tokens_, w_.n_cols);
    return (n_floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }
  /// Floats of scratch for `pack` and for `multiply`.
  [[nodiscard]] std::size_t scratch_size() const {
    return std::max(is_fp8_ ? static_cast<std::size_t>(std::min(n_tokens_, kTokensPerPack) * w_.n_cols) : 0,
                    max_code_ > 0 ? 0 : table_.matmul_scratch(w_, n_tokens_));
  }

  [[nodiscard]] std::int64_t n_packs() const { return (n_tokens_ + kTokensPerPack - 1) / kTokensPerPack; }
  void pack(std::int64_t part, float* packed, float* scratch) const {
    const std::int64_t begin = part * kTokensPerPack;
    const std::int64_t end = std::min(n_tokens_, begin + kTokensPerPack);
    kernels::Activations x{x_, w_.n_cols, n_tokens_, w_.n_cols};
    if (max_code_ > 0) {
      return table_.pack_integers(w_, x, max_code_, begin, end, reinterpret_cast<unsigned char*>(packed));
    }
    if (is_fp8_) {
      for (std::int64_t t = begin; t < end; ++t) {
        kernels::quantise_e4m3_groups(x_ + t * w_.n_cols, w_.n_cols, scratch + (t - begin) * w_.n_cols);
      }
      x.data = scratch - begin * w_.n_cols;
    }
    table_.pack(x, begin, end, packed);
  }

  void multiply(std::int64_t row_begin, std::int64_t row_end, const float* packed, float* y, float* scratch) const {
    if (max_code_ > 0) {
      return table_.matmul_integers(w_, row_begin, row_end, reinterpret_cast<const unsigned char*>(packed), n_tokens_,
                                    y, w_.n_rows);
    }
    table_.matmul(w_, row_begin, row_end, packed, n_tokens_, y, w_.n_rows, scratch);
  }

 private:
  const kernels::KernelTable& table_;
  const MatrixView& w_;
  const float* x_;
  std::int64_t n_tokens_;
  std::int32_t max_code_ = 0;  // of integers; 0: floats
  bool is_fp8_ = false;
};

}  // namespace

ProductRoom product_room(const Arithmetic& arithmetic, const MatrixView& w, std::int64_t n_tokens) {
  const Product product(arithmetic, w, nullptr, n_tokens);
  return {product.packed_size(), product.scratch_size()};
}

void linear(Workers& workers, const MatrixView& w, const float* x, std::int64_t n_tokens, float* y, Output output) {
  const Product product(workers.arithmetic(), w, x, n_tokens);
  workers.count_weights(w);
  const std::size_t n_scratch = product.scratch_size();
  float* packed = workers.shared_scratch(product.packed_size());
  workers.each(product.n_packs(),
               [&](std::int64_t part, int worker) { product.pack(part, packed, workers.scratch(worker, n_scratch)); });

  // Whole scale blocks to a task; about four tasks a thread, so that one slow thread does not hold up the others.
  const std::int64_t wanted = (w.n_rows + 4 * workers.n_threads() - 1) / (4 * workers.n_threads());
  const std::int64_t rows_per_task = (wanted + kernels::kFp8Block - 1) / kernels::kFp8Block * kernels::kFp8Block;
  workers.each((w.n_rows + rows_per_task - 1) / rows_per_task, [&](std::int64_t task, int worker) {
    const std::int64_t end = std::min(w.n_rows, (task + 1) * rows_per_task);
    product.multiply(task * rows_per_task, end, packed, y, workers.scratch(worker, n_scratch));
  });
  if (output == Output::rounded) workers.round_rows(y, n_tokens, w.n_rows);
}

void linear_here(Workers& workers, int worker, const MatrixView& w, const float* x, std::int64_t n_tokens, float* y) {
  const Product product(workers.arithmetic(), w, x, n_tokens);
  workers.count_weights(w);
  float* packed = workers.scratch(worker, product.packed_size() + product.scratch_size());
  float* scratch = packed + product.packed_size();
  for (std::int64_t part = 0; part < product.n_packs(); ++part) product.pack(part, packed, scratch);
  product.multiply(0, w.n_rows, packed, y, scratch);
  workers.round(y, n_tokens * w.n_rows);
}

}  // namespace kalibri::runtime
