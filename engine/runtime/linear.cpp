#include "engine/runtime/linear.hpp"

#include <algorithm>

namespace kalibri::runtime {

void Workers::rows(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t)>& task) {
  const std::int64_t n_runs = (n + grain - 1) / grain;
  each(n_runs, [&](std::int64_t run, int) {
    const std::int64_t end = std::min(n, (run + 1) * grain);
    for (std::int64_t i = run * grain; i < end; ++i) task(i);
  });
}

namespace {

constexpr std::int64_t kTokensPerPack = 16 * kernels::kTokenTile;

}  // namespace

void linear(Workers& workers, const kernels::MatrixView& w, const float* x, std::int64_t n_tokens, float* y) {
  const kernels::KernelTable& table = kernels::kernels();
  const kernels::Activations activations{x, w.n_cols, n_tokens, w.n_cols};
  float* packed = workers.shared_scratch(table.packed_size(n_tokens, w.n_cols));
  workers.each((n_tokens + kTokensPerPack - 1) / kTokensPerPack, [&](std::int64_t part, int) {
    table.pack(activations, part * kTokensPerPack, std::min(n_tokens, (part + 1) * kTokensPerPack), packed);
  });

  // Whole scale blocks to a task; about four tasks a thread, so that one slow thread does not hold up the others.
  const std::int64_t wanted = (w.n_rows + 4 * workers.n_threads() - 1) / (4 * workers.n_threads());
  const std::int64_t rows_per_task = (wanted + kernels::kFp8Block - 1) / kernels::kFp8Block * kernels::kFp8Block;
  const std::size_t n_scratch = table.matmul_scratch(w, n_tokens);
  workers.each((w.n_rows + rows_per_task - 1) / rows_per_task, [&](std::int64_t task, int worker) {
    const std::int64_t end = std::min(w.n_rows, (task + 1) * rows_per_task);
    table.matmul(w, task * rows_per_task, end, packed, n_tokens, y, w.n_rows, workers.scratch(worker, n_scratch));
  });
}

void linear_here(Workers& workers, int worker, const kernels::MatrixView& w, const float* x, std::int64_t n_tokens,
                 float* y) {
  const kernels::KernelTable& table = kernels::kernels();
  const std::size_t n_packed = (table.packed_size(n_tokens, w.n_cols) + 15) / 16 * 16;
  float* packed = workers.scratch(worker, n_packed + table.matmul_scratch(w, n_tokens));
  table.pack({x, w.n_cols, n_tokens, w.n_cols}, 0, n_tokens, packed);
  table.matmul(w, 0, w.n_rows, packed, n_tokens, y, w.n_rows, packed + n_packed);
}

}  // namespace kalibri::runtime
