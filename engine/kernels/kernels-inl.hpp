// Every kernel on the vectors of isa.hpp, as one table. Included once by each kernels_<isa>.cpp, which is compiled with
// that ISA's flags; includes nothing that could leave a function of its own behind for another file to call.
#pragma once

#include "engine/kernels/attention-inl.hpp"
#include "engine/kernels/delta-inl.hpp"
#include "engine/kernels/elementwise-inl.hpp"
#include "engine/kernels/integer_activations-inl.hpp"
#include "engine/kernels/matmul-inl.hpp"

namespace kalibri::kernels {
namespace {

float dot(const float* a, const float* b, std::int64_t n) { return sum(dot_lanes(a, b, n)); }

constexpr KernelTable vector_kernels(const char* isa) {
  return {
      .isa = isa,
      .packed_size = packed_size,
      .pack = pack,
      .matmul_scratch = matmul_scratch,
      .matmul = matmul,
      .packed_integers_size = packed_integers_size,
      .pack_integers = pack_integers,
      .matmul_integers = matmul_integers,
      .dot = dot,
      .rms_norm = rms_norm,
      .rope = rope,
      .silu_mul = silu_mul,
      .sigmoid = sigmoid,
      .add = add,
      .axpy = axpy,
      .silu = silu,
      .scale = scale,
      .multiply = multiply,
      .multiply_add = multiply_add,
      .conv = conv,
      .conv_silu = conv_silu,
      .delta_rule = delta_rule,
      .attention = attention,
  };
}

}  // namespace
}  // namespace kalibri::kernels
