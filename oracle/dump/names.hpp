// The one list of tensor names of the dump format, version 1 (design.md, "The dump"). Reference and engine both use it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kalibri::dump {

enum class ElementType : std::uint8_t { f32, f64, i32, i64 };

/// A dataset below layers/<nn>/ or layers/<nn>/taps/. `floating`: f32, or f64 from an fp64 reference.
struct TensorName {
  std::string_view name;
  std::string_view dims;  // axes, "T" first, for example "T,H"; becomes attribute `dims`
  bool floating = true;
  bool is_tap = true;     // below taps/; the others are always written
};

/// Sorted by name. Extended as families need more.
inline constexpr std::array kLayerTensors = {
    TensorName{"attention_context", "T,heads*D"},  // heads' outputs, concatenated, before o_proj
    TensorName{"attention_out", "T,H"},            // o_proj's output
    TensorName{"expert_ids", "T,k", false, false},
    TensorName{"expert_weights", "T,k", true, false},
    TensorName{"k", "T,kv_heads*D"},               // as cached: after norm and rope
    TensorName{"moe_out", "T,H"},                  // routed + shared, before any norm
    TensorName{"post_attention", "T,R"},           // residual after the attention add
    TensorName{"pre_mlp", "T,H"},                  // input of router and experts
    TensorName{"q", "T,heads*D"},                  // after norm and rope
    TensorName{"residual", "T,R", true, false},
    TensorName{"router_gap", "T", true, false},
    TensorName{"router_logits", "T,E", true, false},
    TensorName{"routed_out", "T,H"},
    TensorName{"shared_out", "T,H"},
    TensorName{"v", "T,kv_heads*D"},
};

/// The entry called `name`, or nothing.
constexpr std::optional<TensorName> find_layer_tensor(std::string_view name) {
  for (const TensorName& tensor : kLayerTensors) {
    if (tensor.name == name) return tensor;
  }
  return std::nullopt;
}

}  // namespace kalibri::dump
