// Where the routed experts' weights come from. The model asks for the experts that it is about to multiply with, and
// says when it is done with them; whether they lie in a mapped file, in memory, or have to be read first is the store's
// affair.
#pragma once

#include <cstdint>

#include "engine/kernels/matrix_view.hpp"

namespace kalibri::runtime {

/// One routed expert: down(silu(gate x) * (up x)); gate and up [I, H], down [H, I].
struct ExpertWeights {
  kernels::MatrixView gate;
  kernels::MatrixView up;
  kernels::MatrixView down;
};

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  /// Weights of one expert, valid until release(layer, expert). May be called by several threads at once.
  /// Throws Error(tensor | file) when they cannot be used.
  virtual ExpertWeights acquire(std::int64_t layer, std::int64_t expert) = 0;
  virtual void release(std::int64_t layer, std::int64_t expert) = 0;
  /// The caller goes layer by layer and will not come back to this one soon: what is held for it may go.
  virtual void leave_layer(std::int64_t layer) = 0;
};

}  // namespace kalibri::runtime
