#include "engine/runtime/weight_forms.hpp"

#include <vector>

#include "engine/kernels/codec.hpp"
#include "engine/runtime/formed_matrix.hpp"

namespace kalibri::runtime {

namespace {

using Kind = WeightForm::Kind;

}  // namespace

WeightForm WeightForms::form_of(const kernels::MatrixView& stored) const {
  const auto found = classes_.find(stored.data);
  if (found != classes_.end()) return form_for(precision_.of(found->second), stored);
  const bool is_fp8 = stored.format == kernels::Format::e4m3_block;
  switch (precision_.dense.kind) {
    case Kind::native:
      return {};
    case Kind::f32:
      return form_for({Kind::f32}, stored);
    case Kind::bf16:
    case Kind::affine:
      break;
  }
  return is_fp8 ? WeightForm{Kind::bf16} : WeightForm{};
}

kernels::MatrixView WeightForms::use(std::int64_t layer, const kernels::MatrixView& stored) {
  const WeightForm form = form_of(stored);
  if (form.kind == Kind::native) return stored;
  Made* made = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Made>& slot = made_[layer][stored.data];
    if (slot == nullptr) slot = std::make_unique<Made>();
    made = slot.get();
  }
  std::call_once(made->once, [&] {
    made->bytes = AnonymousMemory(static_cast<std::size_t>(formed_bytes(form, stored)));
    form_matrix(form, stored, made->bytes.as<unsigned char>());
    if (forget_) forget_(stored);
  });
  return formed_view(form, stored, made->bytes.as<unsigned char>());
}

void WeightForms::decode_row(const kernels::MatrixView& stored, std::int64_t row, float* out) const {
  const WeightForm form = form_of(stored);
  if (form.kind == Kind::native || form.kind == Kind::f32) return kernels::decode_row(stored, row, out);
  const kernels::MatrixView one_row = kernels::row_of(stored, row);
  std::vector<unsigned char> room(static_cast<std::size_t>(formed_bytes(form, one_row)));
  form_matrix(form, one_row, room.data());
  kernels::decode_row(formed_view(form, one_row, room.data()), 0, out);
}

void WeightForms::leave_layer(std::int64_t layer) {
  const std::lock_guard lock(mutex_);
  made_.erase(layer);
}

}  // namespace kalibri::runtime
