// The one list of tensor names of the dump format, version 1. Reference, engine and oracle all use it: the writer
// refuses to write a known name with another kind or number of axes, the reader refuses to read one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kalibri::dump {

enum class ElementType : std::uint8_t { f32, f64, i32, i64 };

/// A dataset. `floating`: f32, or f64 from an fp64 reference; the others are i32 or i64.
struct TensorName {
  std::string_view name;
  std::string_view dims;  // axes, for example "T,H"; becomes attribute `dims`
  bool floating = true;
  bool is_tap = true;  // below taps/, written on request
};

/// Directly below a prompt. P = number of `positions`, or T without them.
inline constexpr std::array kPromptTensors = {
    TensorName{"embedding", "T,H", true, false}, TensorName{"final_norm", "T,H", true, false},
    TensorName{"logits", "P,V", true, false},    TensorName{"position_ids", "3,T", false, false},
    TensorName{"positions", "P", false, false},  TensorName{"tokens", "T", false, false},
};

/// Below decode/<schedule>: row i belongs to position first_position + i.
inline constexpr TensorName kScheduleLogits{"logits", "N,V", true, false};

/// Below layers/<nn>/, or layers/<nn>/taps/ for a tap. Sorted by name. Extended as families need more.
inline constexpr std::array kLayerTensors = {
    TensorName{"attention_context", "T,heads*D"},  // heads' outputs, concatenated, before any gate and o_proj
    TensorName{"attention_out", "T,H"},            // o_proj's output
    TensorName{"attn_inject", "T,C"},              // weights that inject the token mixer's output into C streams
    TensorName{"attn_mixed", "T,H"},               // what enters the token mixer
    TensorName{"delta_core", "T,value_heads,dv"},  // the delta rule's output, before norm and gate
    TensorName{"expert_ids", "T,k", false, false},
    TensorName{"expert_weights", "T,k", true, false},
    TensorName{"index_scores", "T,blocks"},  // -1 where the block is not complete for that query
    TensorName{"k", "T,kv_heads*D"},         // as cached: after norm and rope
    TensorName{"mixer_out", "T,H"},          // the token mixer's output
    TensorName{"mlp_inject", "T,C"},
    TensorName{"mlp_mixed", "T,H"},          // what enters router and experts
    TensorName{"moe_out", "T,H"},            // routed + shared, before any norm
    TensorName{"ngram_embedding", "T,ple"},  // the table's rows, heads side by side
    TensorName{"ngram_rows", "T,heads", false},
    TensorName{"ple_out", "T,R"},         // what the n-gram layer adds to the streams
    TensorName{"post_attention", "T,R"},  // residual after the attention add
    TensorName{"pre_mlp", "T,H"},         // input of router and experts
    TensorName{"q", "T,heads*D"},         // after norm and rope
    TensorName{"residual", "T,R", true, false},
    TensorName{"router_gap", "T", true, false},
    TensorName{"router_logits", "T,E", true, false},
    TensorName{"routed_out", "T,H"},
    TensorName{"selected_blocks", "T,kept", false},  // ascending, -1 padded
    TensorName{"shared_out", "T,H"},                 // times its gate, where it has one
    TensorName{"v", "T,kv_heads*D"},
};

/// The layer tensor called `name`, or nothing.
constexpr std::optional<TensorName> find_layer_tensor(std::string_view name) {
  for (const TensorName& tensor : kLayerTensors) {
    if (tensor.name == name) return tensor;
  }
  return std::nullopt;
}

/// The entry for `path` below a prompt ("logits", "layers/03/residual", "layers/03/taps/q", "decode/tail/logits"), or
/// nothing when the format does not know it.
std::optional<TensorName> find_tensor(std::string_view path);

/// "layers/03/residual" or "layers/03/taps/q", by kLayerTensors (an unknown name is a tap); at least two digits.
std::string layer_path(std::int64_t layer, std::string_view name);

}  // namespace kalibri::dump
