#include "reference/tensor.hpp"

#include <algorithm>

#include "reference/error.hpp"

namespace kalibri::reference {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{16} << 20;  // how much of a file stays in memory while it is decoded

}  // namespace

void load_to(const StoredMatrix& matrix, std::int64_t first_row, const at::Tensor& out) {
  check(out.is_contiguous(), "weights are decoded to contiguous rows");
  if (out.scalar_type() == at::kDouble) {
    decode_rows(matrix, first_row, out.size(0), out.data_ptr<double>());
  } else {
    decode_rows(matrix, first_row, out.size(0), out.data_ptr<float>());
  }
}

at::Tensor load(const StoredMatrix& matrix, at::ScalarType dtype) {
  at::Tensor out = at::empty({matrix.n_rows, matrix.n_cols}, dtype);
  const auto row_bytes = static_cast<std::int64_t>(stored_rows(matrix, 0, 1).size());
  const std::int64_t block_rows = std::max<std::int64_t>(1, kBlockBytes / row_bytes);
  for (std::int64_t row = 0; row < matrix.n_rows; row += block_rows) {
    const std::int64_t n_rows = std::min(block_rows, matrix.n_rows - row);
    load_to(matrix, row, out.narrow(0, row, n_rows));
    drop_rows(matrix, row, n_rows);
  }
  return out;
}

at::Tensor load_rows(const StoredMatrix& matrix, std::span<const std::int64_t> ids, at::ScalarType dtype) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(ids.size()), matrix.n_cols}, dtype);
  std::int64_t row = 0;
  for (const std::int64_t id : ids) load_to(matrix, id, out.narrow(0, row++, 1));
  drop_rows(matrix, 0, matrix.n_rows);
  return out;
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) { return at::mm(x, weight.t()); }

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& w, std::int64_t dilation) {
  const std::int64_t kernel = w.size(1);
  const at::Tensor history = at::zeros({(kernel - 1) * dilation, x.size(1)}, x.options());
  const at::Tensor padded = at::cat({history, x});
  at::Tensor y = at::zeros_like(x);
  for (std::int64_t j = 0; j < kernel; ++j) y += padded.narrow(0, j * dilation, x.size(0)) * w.select(1, j);
  return y;
}

at::Tensor normalised(const at::Tensor& v, double eps) {
  return v / at::sqrt(v.square().mean(-1, /*keepdim=*/true) + eps);
}

at::Tensor rms_norm(const at::Tensor& v, const at::Tensor& g, double eps) { return normalised(v, eps) * g; }

}  // namespace kalibri::reference
