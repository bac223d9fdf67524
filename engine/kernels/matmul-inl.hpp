// Products of a weight matrix with activation rows: the same bits for one token and for many.
#pragma once

#include "engine/kernels/many_tokens-inl.hpp"
#include "engine/kernels/one_token-inl.hpp"

namespace kalibri::kernels {
namespace {

std::size_t matmul_scratch(const MatrixView& w, std::int64_t n_tokens) {
  const std::int64_t steps = n_steps(w.n_cols);
  const Cut cut = cut_for(n_tokens, steps);
  const std::int64_t n_panel = n_tokens == 1 ? 0 : cut.panel_rows * cut.panel_steps;
  const bool splits = w.format == Format::affine && n_tokens == 1;
  const std::int64_t n_copied =
      w.format == Format::e4m3_block || splits ? padded_tokens(min(n_tokens, cut.block_tokens)) : 0;
  return static_cast<std::size_t>((n_panel + n_copied * steps) * kLanes);
}

template <class Row>
void matmul_as(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const float* packed,
               std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch) {
  for (std::int64_t begin = row_begin; begin < row_end;) {
    const std::int64_t end = Row::kScaled ? min(row_end, (begin / kFp8Block + 1) * kFp8Block) : row_end;
    if (n_tokens > 1) {
      multiply_many_tokens<Row>(w, begin, end, packed, n_tokens, y, y_stride, scratch);
    } else if (n_tokens == 1) {
      if constexpr (Row::kScaled) scale_activations<kLanes>(w, begin, 1 / kStreamScale, packed, 1, scratch);
      const float* x = Row::kScaled ? scratch : packed;
      if constexpr (Row::kParts > 1) {
        split_activations<Row::kParts>(w.n_cols, x, scratch);
        x = scratch;
      }
      multiply_one_token<Row>(w, begin, end, x, y);
    }
    begin = end;
  }
}

void matmul_affine(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const float* packed,
                   std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch) {
  switch (w.bits) {
    case 2:
      return matmul_as<AffineRow<2>>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case 3:
      return matmul_as<AffineRow<3>>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case 4:
      return matmul_as<AffineRow<4>>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case 5:
      return matmul_as<AffineRow<5>>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case 6:
      return matmul_as<AffineRow<6>>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    default:
      return matmul_as<AffineRow<8>>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
  }
}

void matmul(const MatrixView& w, std::int64_t row_begin, std::int64_t row_end, const float* packed,
            std::int64_t n_tokens, float* y, std::int64_t y_stride, float* scratch) {
  switch (w.format) {
    case Format::f32:
      return matmul_as<F32Row>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case Format::bf16:
      return matmul_as<Bf16Row>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case Format::e4m3_block:
      return matmul_as<E4m3Row>(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
    case Format::affine:
      return matmul_affine(w, row_begin, row_end, packed, n_tokens, y, y_stride, scratch);
  }
}

}  // namespace
}  // namespace kalibri::kernels
