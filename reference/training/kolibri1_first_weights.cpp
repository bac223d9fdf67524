// Where Kolibri's training begins: see first_weights.hpp. Three steps, each over what the one before it left.
#include <cmath>

#include "reference/training/first_weights.hpp"

namespace kalibri::reference::training {
namespace {

std::string layer_name(std::size_t layer) { return "model.layers." + std::to_string(layer) + "."; }

/// A projection's rows of one head of attention.
at::Tensor head_rows(const Kolibri1Config& c, const Weights& w, std::size_t layer, const char* name,
                     std::int64_t head) {
  return w[layer_name(layer) + name].narrow(0, head * c.head_dim, c.head_dim);
}

/// Lets the query heads of the first layer's first KV head begin as heads that look 1, 2, 3, … tokens back: what a
/// token has in common with all others becomes, in the three fastest planes of the rotation, a key at angle 0 and a
/// query turned back by the distance.
void look_back(const Kolibri1Config& c, const Weights& w, std::int64_t n_heads) {
  constexpr std::int64_t kPlanes = 3;
  constexpr double kStrength = 10;  // against about 1 of the random part
  constexpr double kSharp = 2.2;    // so that the neighbours' scores are 5 lower
  const std::int64_t half = c.head_dim / 2;
  const at::Tensor exponent = at::arange(0, kPlanes, at::kDouble) / static_cast<double>(half);
  const at::Tensor theta = at::pow(at::scalar_tensor(c.rope_theta, at::kDouble), -exponent);
  const double size =
      kStrength * std::sqrt(static_cast<double>(c.head_dim) / kPlanes) / static_cast<double>(c.hidden_size);
  const auto add = [&](const char* name, std::int64_t head, double distance) {
    const at::Tensor rows = head_rows(c, w, 0, name, head);
    rows.narrow(0, 0, kPlanes).add_(at::cos(theta * distance).unsqueeze(1), size);
    rows.narrow(0, half, kPlanes).sub_(at::sin(theta * distance).unsqueeze(1), size);
  };
  for (const char* name : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}) {
    w[layer_name(0) + name].narrow(0, 0, kPlanes).fill_(kSharp);
    w[layer_name(0) + name].narrow(0, half, kPlanes).fill_(kSharp);
  }
  add("self_attn.k_proj.weight", 0, 0);
  for (std::int64_t head = 0; head < n_heads; ++head) {
    add("self_attn.q_proj.weight", head, static_cast<double>(head + 1));
  }
}

/// Lets a full layer begin by comparing names: what the first layer's heads found 1, 2, 3, … tokens back goes to a lane
/// of the residual each, which nothing else writes much into, and the full layer's first KV head has as key what stood
/// two tokens before a token (a value's name), as queries what stood 1, 3, … before the one that asks.
void compare_names(const Kolibri1Config& c, const Weights& w, std::int64_t n_heads) {
  constexpr double kQuiet = 0.2;  // of embeddings in the lanes, and of what other layers write there
  const std::int64_t lanes = n_heads * c.head_dim;
  const at::Tensor eye = at::eye(c.head_dim, w.values().options());
  w["model.embed_tokens.weight"].narrow(1, 0, lanes).mul_(kQuiet);
  const at::Tensor values = head_rows(c, w, 0, "self_attn.v_proj.weight", 0);
  values.sub_(values.mean(1, /*keepdim=*/true));  // without what all tokens have in common
  for (std::size_t layer = 0; layer < c.is_sliding.size(); ++layer) {
    const std::string p = layer_name(layer);
    w[p + "post_attn_norm.weight"].narrow(0, 0, lanes).fill_(layer == 0 ? 1.0 : kQuiet / 4);
    w[p + "post_ffn_norm.weight"].narrow(0, 0, lanes).fill_(kQuiet / 4);
    if (layer == 0) w[p + "self_attn.o_proj.weight"].narrow(0, 0, lanes).zero_();
    for (std::int64_t head = 0; head < n_heads; ++head) {
      const auto lane = [&](const at::Tensor& matrix, std::int64_t axis) {
        return matrix.narrow(axis, head * c.head_dim, c.head_dim);
      };
      if (layer == 0) {
        lane(lane(w[p + "self_attn.o_proj.weight"], 0), 1).copy_(eye);
      } else if (!c.is_sliding[layer]) {
        const bool is_key = head == 1;
        const at::Tensor rows =
            head_rows(c, w, layer, is_key ? "self_attn.k_proj.weight" : "self_attn.q_proj.weight", is_key ? 0 : head);
        rows.zero_();
        lane(rows, 1).copy_(eye);
      }
    }
  }
}

/// Lets the same heads begin by copying: what they find is a projection of a token outside the lanes, which they write
/// back where it was, and the head's rows begin as the embeddings.
void copy_found(const Kolibri1Config& c, const Weights& w, std::int64_t n_heads) {
  constexpr double kOthers = 0.1;  // what the other parts of the residual weigh at first
  const std::int64_t lanes = n_heads * c.head_dim;
  const auto outside = [&](const at::Tensor& x, std::int64_t axis) {
    return x.narrow(axis, lanes, c.hidden_size - lanes);
  };
  outside(w["lm_head.weight"], 1).copy_(outside(w["model.embed_tokens.weight"], 1) / std::sqrt(c.hidden_size));
  for (std::size_t layer = 0; layer < c.is_sliding.size(); ++layer) {
    const std::string p = layer_name(layer);
    outside(w[p + "post_ffn_norm.weight"], 0).fill_(kOthers);
    outside(w[p + "post_attn_norm.weight"], 0).fill_(c.is_sliding[layer] ? kOthers : 1.0);
    if (c.is_sliding[layer]) continue;
    const at::Tensor values = head_rows(c, w, layer, "self_attn.v_proj.weight", 0);
    values.narrow(1, 0, lanes).zero_();
    outside(values, 1).sub_(outside(values, 1).mean(1, /*keepdim=*/true));
    const at::Tensor out = w[p + "self_attn.o_proj.weight"];
    out.mul_(kOthers);
    for (std::int64_t head = 0; head < n_heads; ++head) {
      if (head != 1) outside(out.narrow(1, head * c.head_dim, c.head_dim), 0).copy_(2 * outside(values, 1).t());
    }
  }
}

}  // namespace

void shape_first_weights(const Kolibri1Config& c, const Weights& w) {
  const at::NoGradGuard no_gradients;
  const std::int64_t n_heads = c.num_attention_heads / c.num_key_value_heads;
  look_back(c, w, n_heads);
  compare_names(c, w, n_heads);
  copy_found(c, w, n_heads);
}

}  // namespace kalibri::reference::training
