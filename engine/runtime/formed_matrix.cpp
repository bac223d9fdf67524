#include "engine/runtime/formed_matrix.hpp"

#include "engine/base/error.hpp"

namespace kalibri::runtime {

namespace {

using kernels::Format;
using kernels::MatrixView;
using Kind = WeightForm::Kind;

[[noreturn]] void refuse_values() {
  throw Error(ErrorCode::tensor,
              "a weight matrix holds NaN, an infinity or a range beyond f32, of which no bf16 or affine form can be "
              "made; 'kalibri inspect --full-fingerprint' finds it");
}

Format format_of(Kind kind) {
  return kind == Kind::f32 ? Format::f32 : kind == Kind::bf16 ? Format::bf16 : Format::affine;
}

}  // namespace

WeightForm form_for(const WeightForm& wanted, const MatrixView& stored) {
  WeightForm form = wanted;
  if (form.kind == Kind::affine && stored.n_cols % form.affine.group_size != 0) form = {Kind::bf16};
  const bool is_stored_so = (form.kind == Kind::f32 && stored.format == Format::f32) ||
                            (form.kind == Kind::bf16 && stored.format == Format::bf16);
  return is_stored_so ? WeightForm{} : form;
}

MatrixView formed_view(const WeightForm& form, const MatrixView& stored, const unsigned char* room) {
  MatrixView view{.format = format_of(form.kind), .n_rows = stored.n_rows, .n_cols = stored.n_cols, .data = room};
  if (form.kind != Kind::affine) return view;
  view.bits = static_cast<std::int32_t>(form.affine.bits);
  view.group_size = static_cast<std::int32_t>(form.affine.group_size);
  const unsigned char* scales = room + kernels::stored_bytes(view);
  view.scales = scales;
  view.biases = scales + view.n_rows * kernels::grid_row_bytes(view);
  return view;
}

std::int64_t formed_bytes(const WeightForm& form, const MatrixView& stored) {
  const MatrixView view = formed_view(form, stored, nullptr);
  const std::int64_t grid_bytes = form.kind == Kind::affine ? 2 * view.n_rows * kernels::grid_row_bytes(view) : 0;
  return kernels::stored_bytes(view) + grid_bytes;
}

void form_matrix(const WeightForm& form, const MatrixView& stored, unsigned char* room) {
  const MatrixView view = formed_view(form, stored, room);
  const std::int64_t row_bytes = kernels::row_bytes(view);
  if (form.kind != Kind::affine) {
    for (std::int64_t row = 0; row < stored.n_rows; ++row) {
      unsigned char* to = room + row * row_bytes;
      if (form.kind == Kind::f32) {
        kernels::decode_row(stored, row, reinterpret_cast<float*>(to));
      } else if (!kernels::round_row(stored, row, reinterpret_cast<std::uint16_t*>(to))) {
        refuse_values();
      }
    }
    return;
  }
  unsigned char* const scales = room + kernels::stored_bytes(view);
  unsigned char* const biases = scales + view.n_rows * kernels::grid_row_bytes(view);
  for (std::int64_t row = 0; row < stored.n_rows; ++row) {
    const std::int64_t grid = row * kernels::grid_row_bytes(view);
    if (!kernels::quantise_row(stored, row, form.affine, room + row * row_bytes,
                               reinterpret_cast<std::uint16_t*>(scales + grid),
                               reinterpret_cast<std::uint16_t*>(biases + grid))) {
      refuse_values();
    }
  }
}

}  // namespace kalibri::runtime
