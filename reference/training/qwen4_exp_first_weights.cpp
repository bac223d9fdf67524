// Where qwen4_exp's training begins: see first_weights.hpp.
#include <algorithm>
#include <cmath>

#include "reference/training/first_weights.hpp"

namespace kalibri::reference::training {
namespace {

const std::string kPrefix = "model.language_model.";

constexpr double kQuiet = 0.2;  // of embeddings in the lanes, and outside them of what experts write at first

/// Of what other layers write into the lanes.
constexpr double kVeryQuiet = kQuiet / 4;

std::string layer_name(std::size_t layer) { return kPrefix + "layers." + std::to_string(layer) + "."; }

/// Lane i of an axis that is the hidden size: as wide as a value head of the first DeltaNet layer.
struct Lanes {
  std::int64_t n = 0, width = 0, hidden_size = 0;

  [[nodiscard]] at::Tensor one(const at::Tensor& x, std::int64_t axis, std::int64_t i) const {
    return x.narrow(axis, i * width, width);
  }
  [[nodiscard]] at::Tensor all(const at::Tensor& x, std::int64_t axis) const { return x.narrow(axis, 0, n * width); }
  [[nodiscard]] at::Tensor outside(const at::Tensor& x, std::int64_t axis) const {
    return x.narrow(axis, n * width, hidden_size - n * width);
  }
};

/// Keeps the lanes for what the first layer writes there.
void quieten(const Qwen4ExpConfig& c, const Weights& w, const Lanes& lanes) {
  lanes.all(w[kPrefix + "embed_tokens.weight"], 1).mul_(kQuiet);
  for (std::size_t layer = 0; layer < c.is_sparse.size(); ++layer) {
    const std::string p = layer_name(layer);
    w[p + "mlp.experts.down_proj"].mul_(kQuiet);
    w[p + "mlp.shared_expert.down_proj.weight"].mul_(kQuiet);
    lanes.all(w[p + "mlp.experts.down_proj"], 1).mul_(kVeryQuiet);
    lanes.all(w[p + "mlp.shared_expert.down_proj.weight"], 0).mul_(kVeryQuiet);
    const char* mixer = c.is_sparse[layer] ? "self_attn.o_proj.weight" : "linear_attn.out_proj.weight";
    lanes.all(w[p + mixer], 0).mul_(kVeryQuiet);
  }
  const std::string p = layer_name(static_cast<std::size_t>(c.ple_layers.front())) + "ple.";
  lanes.all(w[p + "value_proj.weight"], 0).mul_(kVeryQuiet);
  lanes.all(w[p + "conv1d.weight"].view({c.hc_count, c.hidden_size, -1}), 1).mul_(kVeryQuiet);
}

/// Lets the first DeltaNet layer begin as one that looks back: its state forgets at once, so that what a value head
/// gives is what its convolution takes from one place: value head i from i + 1 tokens back. Each writes into a lane.
void look_back(const Qwen4ExpConfig& c, const Weights& w, const Lanes& lanes) {
  const std::string p = layer_name(0) + "linear_attn.";
  const std::int64_t key_width = c.linear_num_key_heads * c.linear_key_head_dim;
  const at::Tensor qkv = w[p + "in_proj_qkv.weight"];
  const at::Tensor conv = w[p + "conv1d.weight"];
  const auto values = [&](const at::Tensor& x, std::int64_t head) {
    return x.narrow(0, 2 * key_width + head * lanes.width, lanes.width);
  };
  qkv.narrow(0, 0, key_width).copy_(qkv.narrow(0, key_width, key_width));  // queries like keys
  conv.narrow(0, 0, key_width).copy_(conv.narrow(0, key_width, key_width));
  values(qkv, 0).mul_(2);  // away from the middle of silu
  for (std::int64_t head = 0; head < lanes.n; ++head) {
    w[p + "A_log"][head] = 2;
    w[p + "dt_bias"][head] = 2;
    if (head > 0) values(qkv, head).copy_(values(qkv, 0));  // so that lanes can be compared
    const at::Tensor taps = values(conv, head);
    taps.zero_();
    taps.select(2, c.linear_conv_kernel_dim - 2 - head).fill_(1);
    lanes.one(w[p + "in_proj_z.weight"], 0, head).zero_();
    const at::Tensor out = lanes.one(w[p + "out_proj.weight"], 0, head);
    out.zero_();
    lanes.one(out, 1, head).copy_(2 * at::eye(lanes.width, out.options()));  // the gate halves it
  }
}

/// Lets a sparse layer's first two heads begin by comparing lanes, and by copying what they find: a projection of a
/// token outside the lanes, written back where it was, and the output head's rows begin as the embeddings.
void compare_and_copy(const Qwen4ExpConfig& c, const Weights& w, const Lanes& lanes, const std::string& p) {
  const auto look_at = [&](const char* name, std::int64_t first_row, std::int64_t lane) {
    const at::Tensor rows = w[p + name].narrow(0, first_row, c.head_dim);
    rows.zero_();
    const std::int64_t n = std::min(lanes.width, c.head_dim);
    lanes.one(rows, 1, lane)
        .narrow(1, 0, n)
        .narrow(0, c.head_dim - n, n)  // what is rotated comes first
        .copy_(at::eye(n, rows.options()));
  };
  look_at("k_proj.weight", 0, 1);
  look_at("q_proj.weight", 0, 0);
  look_at("q_proj.weight", 2 * c.head_dim, 2);  // behind the first head's gate
  const at::Tensor values = w[p + "v_proj.weight"].narrow(0, 0, c.head_dim);
  lanes.all(values, 1).zero_();
  const at::Tensor out = w[p + "o_proj.weight"];
  out.mul_(kQuiet);
  for (std::int64_t head = 0; head < 2; ++head) {
    lanes.outside(out.narrow(1, head * c.head_dim, c.head_dim), 0)
        .copy_(4 * lanes.outside(values, 1).t());  // the gate halves it
  }
  lanes.outside(w["lm_head.weight"], 1)
      .copy_(lanes.outside(w[kPrefix + "embed_tokens.weight"], 1) * (2 / std::sqrt(c.hidden_size)));
}

}  // namespace

void shape_first_weights(const Qwen4ExpConfig& c, const Weights& w) {
  const at::NoGradGuard no_gradients;
  const Lanes lanes{c.linear_conv_kernel_dim - 1, c.linear_value_head_dim, c.hidden_size};
  quieten(c, w, lanes);
  look_back(c, w, lanes);
  for (std::size_t layer = 0; layer < c.is_sparse.size(); ++layer) {
    if (c.is_sparse[layer]) compare_and_copy(c, w, lanes, layer_name(layer) + "self_attn.");
  }
}

}  // namespace kalibri::reference::training
