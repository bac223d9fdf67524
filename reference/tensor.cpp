#include "reference/tensor.hpp"

#include <algorithm>

#include "reference/error.hpp"
#include "reference/mapped_file.hpp"

namespace kalibri::reference {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{16} << 20;  // how much of a file stays in memory while it is decoded

/// Decodes rows [first_row, first_row + out.size(0)) to `out`.
void decode_to(const StoredMatrix& matrix, std::int64_t first_row, const at::Tensor& out) {
  check(out.is_contiguous(), "weights are decoded to contiguous rows");
  if (out.scalar_type() == at::kDouble) {
    decode_rows(matrix, first_row, out.size(0), out.data_ptr<double>());
  } else {
    decode_rows(matrix, first_row, out.size(0), out.data_ptr<float>());
  }
}

}  // namespace

at::Tensor load(const StoredMatrix& matrix, at::ScalarType dtype) {
  at::Tensor out = at::empty({matrix.n_rows, matrix.n_cols}, dtype);
  const std::span<const std::byte> bytes = matrix.weight->bytes;
  const std::int64_t row_bytes = static_cast<std::int64_t>(bytes.size()) / matrix.n_rows;
  const std::int64_t block_rows = std::max<std::int64_t>(1, kBlockBytes / row_bytes);
  for (std::int64_t row = 0; row < matrix.n_rows; row += block_rows) {
    const std::int64_t n_rows = std::min(block_rows, matrix.n_rows - row);
    decode_to(matrix, row, out.narrow(0, row, n_rows));
    drop_pages(bytes.subspan(static_cast<std::size_t>(row * row_bytes), static_cast<std::size_t>(n_rows * row_bytes)));
  }
  return out;
}

at::Tensor load_rows(const StoredMatrix& matrix, std::span<const std::int32_t> ids, at::ScalarType dtype) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(ids.size()), matrix.n_cols}, dtype);
  std::int64_t row = 0;
  for (const std::int32_t id : ids) decode_to(matrix, id, out.narrow(0, row++, 1));
  drop_pages(matrix.weight->bytes);
  return out;
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) { return at::mm(x, weight.t()); }

at::Tensor rms_norm(const at::Tensor& v, const at::Tensor& g, double eps) {
  return v / at::sqrt(v.square().mean(-1, /*keepdim=*/true) + eps) * g;
}

}  // namespace kalibri::reference
