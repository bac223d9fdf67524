// Hands one layer's rows to whoever listens. Without a listener each call is one null check.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "engine/runtime/taps.hpp"

namespace kalibri::model {

struct TapWriter {
  runtime::TapSink* sink = nullptr;
  int layer = -1;
  std::int64_t first_pos = 0;
  std::int64_t n_rows = 0;

  [[nodiscard]] bool wants(std::string_view name) const { return sink != nullptr && sink->wants(layer, name); }

  /// data [n_rows, dims...].
  template <typename T>
  void give(std::string_view name, std::initializer_list<std::int64_t> dims, const T* data) const {
    if (!wants(name)) return;
    sink->take(runtime::TapRows<T>{layer, name, first_pos, n_rows, {dims.begin(), dims.size()}, data});
  }
};

}  // namespace kalibri::model
