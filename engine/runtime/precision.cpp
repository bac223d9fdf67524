#include "engine/runtime/precision.hpp"

#include "engine/base/error.hpp"

namespace kalibri::runtime {

Precision Precision::parse(std::string_view text) {
  if (text == "exact") return {Weights::f32};
  if (text == "native") return {Weights::native};
  throw Error(ErrorCode::usage, "--precision: '" + std::string(text) +
                                    "' is not known; use 'exact' (weights expanded to f32 once) or "
                                    "'native' (weights multiplied as stored)");
}

std::string Precision::text() const { return weights == Weights::f32 ? "exact" : "native"; }

}  // namespace kalibri::runtime
