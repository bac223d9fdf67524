// qwen4_exp over packed rows. The formulas are those of reference/qwen4_exp.cpp and the files that it includes. What
// only training has: the indexer learns from the attention that it would have to spare (DeepSeek-V3.2's way), and a
// loss that keeps all experts in use (Fedus et al., Switch Transformers, 2021, equation 4).
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reference/attention.hpp"
#include "reference/ngram_hash.hpp"
#include "reference/qwen4_exp_config.hpp"
#include "reference/training/first_weights.hpp"
#include "reference/training/functions.hpp"
#include "reference/training/trainee.hpp"

namespace kalibri::reference::training {
namespace {

constexpr double kBalanceWeight = 0.01;
constexpr std::int64_t kTableShards = 4;
const std::string kPrefix = "model.language_model.";

Qwen4ExpConfig nano_config() {
  Qwen4ExpConfig c;
  c.vocab_size = 2304;
  c.hidden_size = 192;
  c.num_hidden_layers = 4;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-6;
  c.has_block_scales = true;
  c.is_sparse = {false, false, false, true};
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.rope_theta = 1e7;
  c.rotary_dim = 8;
  c.indexer_n_heads = 4;
  c.indexer_head_dim = 16;
  c.indexer_budget = 64;
  c.indexer_compress_ratio = 4;
  c.linear_num_key_heads = 2;
  c.linear_num_value_heads = 4;
  c.linear_key_head_dim = 32;
  c.linear_value_head_dim = 32;
  c.linear_conv_kernel_dim = 4;
  c.output_gate_is_sigmoid = true;
  c.hc_count = 4;
  c.hc_lowrank = 16;
  c.num_experts = 16;
  c.num_experts_per_tok = 3;
  c.moe_intermediate_size = 96;
  c.shared_expert_intermediate_size = 96;
  c.ple_layers = {1};
  c.ple_embed_dim = 64;
  c.ple_conv_kernel_size = 4;
  c.ngram_size = 3;
  c.heads_per_ngram = 2;
  c.ngram_vocab_size_base = 7800;
  c.make_ngram_vocab_size_divisible_by = 128;
  c.seed = 1234;
  c.eos_token_id = 2290;  // <|endoftext|>, behind 256 bytes and 2,034 merges
  return c;
}

Qwen4ExpConfig tiny_config() {
  Qwen4ExpConfig c = nano_config();
  c.vocab_size = 40;
  c.hidden_size = 16;
  c.num_hidden_layers = 3;
  c.is_sparse = {false, false, true};
  c.head_dim = 16;
  c.rotary_dim = 4;
  c.indexer_n_heads = 2;
  c.indexer_head_dim = 8;
  c.indexer_budget = 8;
  c.linear_key_head_dim = 4;
  c.linear_value_head_dim = 6;
  c.hc_lowrank = 6;
  c.num_experts = 6;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 8;
  c.shared_expert_intermediate_size = 12;
  c.ple_embed_dim = 8;
  c.ngram_vocab_size_base = 31;
  c.make_ngram_vocab_size_divisible_by = 4;
  c.eos_token_id = 1;
  return c;
}

std::string layer_name(std::size_t layer) { return kPrefix + "layers." + std::to_string(layer) + "."; }

float spread(std::int64_t n_in) { return 1 / std::sqrt(static_cast<float>(n_in)); }

void add_connection(ParameterTable& table, const Qwen4ExpConfig& c, const std::string& p, bool injects) {
  const std::int64_t width = c.hc_count * c.hidden_size;
  table.constant(p + "hc_norm.weight", {width}, 0);
  table.matrix(p + "input_mix_weight_down.weight", {c.hc_lowrank, width}, 2 * spread(width));
  table.matrix(p + "input_mix_weight_up.weight", {width, c.hc_lowrank}, spread(c.hc_lowrank));
  if (injects) table.matrix(p + "block_inject_weight.weight", {c.hc_count, width}, spread(width));
}

void add_delta_net(ParameterTable& table, const Qwen4ExpConfig& c, const std::string& p) {
  const std::int64_t h = c.hidden_size;
  const std::int64_t value_width = c.linear_num_value_heads * c.linear_value_head_dim;
  const std::int64_t channels = 2 * c.linear_num_key_heads * c.linear_key_head_dim + value_width;
  table.matrix(p + "in_proj_qkv.weight", {channels, h}, spread(h));
  table.matrix(p + "in_proj_z.weight", {value_width, h}, spread(h));
  table.matrix(p + "in_proj_b.weight", {c.linear_num_value_heads, h}, spread(h));
  table.matrix(p + "in_proj_a.weight", {c.linear_num_value_heads, h}, spread(h));
  table.matrix(p + "conv1d.weight", {channels, 1, c.linear_conv_kernel_dim}, 0.5F);
  table.vector(p + "dt_bias", c.linear_num_value_heads, -4, 0.5F);  // memories of some tens of tokens
  table.vector(p + "A_log", c.linear_num_value_heads, 0, 1);
  table.constant(p + "norm.weight", {c.linear_value_head_dim}, 1);
  table.matrix(p + "out_proj.weight", {h, value_width}, spread(value_width));
}

void add_sparse_attention(ParameterTable& table, const Qwen4ExpConfig& c, const std::string& p) {
  const std::int64_t h = c.hidden_size;
  const std::int64_t width = c.num_attention_heads * c.head_dim;
  table.matrix(p + "q_proj.weight", {2 * width, h}, spread(h));
  table.matrix(p + "k_proj.weight", {c.num_key_value_heads * c.head_dim, h}, spread(h));
  table.matrix(p + "v_proj.weight", {c.num_key_value_heads * c.head_dim, h}, spread(h));
  table.matrix(p + "o_proj.weight", {h, width}, spread(width));
  table.constant(p + "q_norm.weight", {c.head_dim}, 0.6F);
  table.constant(p + "k_norm.weight", {c.head_dim}, 0.6F);
  table.matrix(p + "indexer.index_qk_proj.weight", {(c.indexer_n_heads + 1) * c.indexer_head_dim, h}, spread(h));
  table.constant(p + "indexer.q_layernorm.weight", {c.indexer_head_dim}, 0);
  table.constant(p + "indexer.k_layernorm.weight", {c.indexer_head_dim}, 0);
}

void add_ngram(ParameterTable& table, const Qwen4ExpConfig& c, const std::string& p, const NgramHash& hash) {
  const std::int64_t width = c.hc_count * c.hidden_size;
  table.matrix(p + "key_proj.weight", {width, c.ple_embed_dim}, spread(c.ple_embed_dim));
  table.matrix(p + "value_proj.weight", {c.hidden_size, c.ple_embed_dim}, spread(c.ple_embed_dim));
  for (const char* norm : {"norm_key.weight", "norm_query.weight", "norm_conv.weight"})
    table.constant(p + norm, {width}, 0);
  table.matrix(p + "conv1d.weight", {width, 1, c.ple_conv_kernel_size}, 0.2F);
  table.matrix(p + "ple_embedding.ngram_embedding.weight", {hash.n_table_rows, c.ple_embed_dim / c.n_ngram_heads()},
               0.3F);
}

ParameterTable make_table(const Qwen4ExpConfig& c, const NgramHash& hash) {
  const std::int64_t h = c.hidden_size;
  ParameterTable table;
  table.matrix(kPrefix + "embed_tokens.weight", {c.vocab_size, h}, 0.5F);
  table.matrix("lm_head.weight", {c.vocab_size, h}, spread(h));
  for (std::size_t layer = 0; layer < c.is_sparse.size(); ++layer) {
    const std::string p = layer_name(layer);
    if (static_cast<std::int64_t>(layer) == c.ple_layers.front()) add_ngram(table, c, p + "ple.", hash);
    add_connection(table, c, p + "attn_hyper_connection.", true);
    if (c.is_sparse[layer]) {
      add_sparse_attention(table, c, p + "self_attn.");
    } else {
      add_delta_net(table, c, p + "linear_attn.");
    }
    add_connection(table, c, p + "mlp_hyper_connection.", true);
    table.matrix(p + "mlp.gate.weight", {c.num_experts, h}, spread(h));
    table.matrix(p + "mlp.experts.gate_up_proj", {c.num_experts, 2 * c.moe_intermediate_size, h}, spread(h));
    table.matrix(p + "mlp.experts.down_proj", {c.num_experts, h, c.moe_intermediate_size},
                 spread(c.moe_intermediate_size));
    table.matrix(p + "mlp.shared_expert.gate_proj.weight", {c.shared_expert_intermediate_size, h}, spread(h));
    table.matrix(p + "mlp.shared_expert.up_proj.weight", {c.shared_expert_intermediate_size, h}, spread(h));
    table.matrix(p + "mlp.shared_expert.down_proj.weight", {h, c.shared_expert_intermediate_size},
                 spread(c.shared_expert_intermediate_size));
    table.matrix(p + "mlp.shared_expert_gate.weight", {1, h}, spread(h));
  }
  add_connection(table, c, kPrefix + "hyper_connection_mixer.", false);
  return table;
}

/// One batch's forward pass. Streams are [N, C * H]; what looks back along a row is viewed [B, T, …].
class Pass {
 public:
  Pass(const Qwen4ExpConfig& config, const NgramHash& hash, const Weights& weights, const Batch& batch,
       const Phase& phase, Choices& choices)
      : c(config),
        hash_(hash),
        w(weights),
        batch_(batch),
        phase_(phase),
        choices_(choices),
        documents_(at::tensor(batch.documents, at::kInt).reshape({batch.n_rows, batch.n_tokens})),
        masked_(mask_of(batch)),
        turn_(rotation(batch.n_tokens, config.rotary_dim, config.rope_theta, weights.values().scalar_type())) {}

  Outputs run() {
    at::Tensor x = at::embedding(w[kPrefix + "embed_tokens.weight"], ids_tensor(batch_)).repeat({1, c.hc_count});
    for (std::size_t layer = 0; layer < c.is_sparse.size(); ++layer) {
      const std::string p = layer_name(layer);
      if (static_cast<std::int64_t>(layer) == c.ple_layers.front()) x = x + ngram(p + "ple.", x);
      const auto [u, g] = mix(p + "attn_hyper_connection.", x, true);
      x = inject(x, g,
                 c.is_sparse[layer] ? sparse_attention(p + "self_attn.", u, layer) : delta_net(p + "linear_attn.", u));
      const auto [v, f] = mix(p + "mlp_hyper_connection.", x, true);
      x = inject(x, f, mixture(p + "mlp.", v, layer));
    }
    const at::Tensor read = mix(kPrefix + "hyper_connection_mixer.", x, false).first;
    return {apply_linear(read, w["lm_head.weight"]), auxiliary_};
  }

 private:
  [[nodiscard]] at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return rms_norm(x, w[name] + 1, c.rms_norm_eps);
  }
  /// RMS norm of each stream: [N, C * H] -> [N, C, H].
  [[nodiscard]] at::Tensor norm_streams(const at::Tensor& x, const std::string& name) const {
    return norm(x.reshape({x.size(0), c.hc_count, c.hidden_size}), name);
  }
  [[nodiscard]] at::Tensor rows(const at::Tensor& x) const { return x.reshape({batch_.n_rows, batch_.n_tokens, -1}); }

  void add_loss(const at::Tensor& loss) { auxiliary_ = auxiliary_.defined() ? auxiliary_ + loss : loss; }

  [[nodiscard]] std::pair<at::Tensor, at::Tensor> mix(const std::string& p, const at::Tensor& x, bool injects) const {
    const auto n_streams = static_cast<double>(c.hc_count);
    const at::Tensor n = norm_streams(x, p + "hc_norm.weight");
    const at::Tensor flat = n.flatten(1);
    const at::Tensor l = at::silu(apply_linear(flat, w[p + "input_mix_weight_down.weight"]) / n_streams);
    const at::Tensor m = at::sigmoid(apply_linear(l, w[p + "input_mix_weight_up.weight"])).reshape_as(n);
    if (!injects) return {(m * n).mean(1), {}};
    return {(m * n).mean(1), 2 * at::sigmoid(apply_linear(flat, w[p + "block_inject_weight.weight"]) / n_streams)};
  }

  [[nodiscard]] static at::Tensor inject(const at::Tensor& x, const at::Tensor& g, const at::Tensor& out) {
    return x + (g.unsqueeze(2) * out.unsqueeze(1)).flatten(1);
  }

  /// Depthwise convolution along rows, in which a tap that would reach into another document reads 0. x [N, n], w [n,
  /// 1, K].
  [[nodiscard]] at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& taps, std::int64_t dilation) const {
    const std::int64_t kernel = taps.size(2);
    const at::Tensor in_rows = rows(x);
    at::Tensor y = in_rows * taps.select(2, kernel - 1).squeeze(1);
    for (std::int64_t j = 0; j + 1 < kernel; ++j) {
      const std::int64_t back = (kernel - 1 - j) * dilation;
      if (back >= batch_.n_tokens) continue;
      const std::int64_t n = batch_.n_tokens - back;
      const at::Tensor same =
          (documents_.narrow(1, 0, n) == documents_.narrow(1, back, n)).unsqueeze(2).to(x.scalar_type());
      const at::Tensor earlier = in_rows.narrow(1, 0, n) * same * taps.select(2, j).squeeze(1);
      y = y + at::constant_pad_nd(earlier, {0, 0, back, 0});
    }
    return y.reshape_as(x);
  }

  [[nodiscard]] at::Tensor delta_net(const std::string& p, const at::Tensor& u) const {
    const std::int64_t key_width = c.linear_num_key_heads * c.linear_key_head_dim;
    const std::int64_t value_width = c.linear_num_value_heads * c.linear_value_head_dim;
    const std::int64_t n_repeats = c.linear_num_value_heads / c.linear_num_key_heads;
    const at::Tensor qkv =
        at::silu(causal_conv(apply_linear(u, w[p + "in_proj_qkv.weight"]), taps(p + "conv1d.weight"), 1));
    const auto key_heads = [&](std::int64_t begin) {
      const at::Tensor x =
          qkv.narrow(1, begin, key_width)
              .reshape({batch_.n_rows, batch_.n_tokens, c.linear_num_key_heads, c.linear_key_head_dim});
      return (x * at::rsqrt(x.square().sum(-1, true) + 1e-6)).repeat_interleave(n_repeats, 2);
    };
    const at::Tensor q = key_heads(0) / std::sqrt(static_cast<double>(c.linear_key_head_dim));
    const at::Tensor k = key_heads(key_width);
    const at::Tensor v =
        qkv.narrow(1, 2 * key_width, value_width)
            .reshape({batch_.n_rows, batch_.n_tokens, c.linear_num_value_heads, c.linear_value_head_dim});
    const at::Tensor beta = at::sigmoid(apply_linear(u, w[p + "in_proj_b.weight"]));
    const at::Tensor a = apply_linear(u, w[p + "in_proj_a.weight"]) + w[p + "dt_bias"];
    const at::Tensor alpha = at::exp(-at::exp(w[p + "A_log"]) * at::softplus(a, 1, 40));
    const at::Tensor o = delta_rule(q, k, v, rows(alpha) * continues(), rows(beta));
    const at::Tensor z = at::sigmoid(apply_linear(u, w[p + "in_proj_z.weight"])).reshape_as(o);
    const at::Tensor y = rms_norm(o, w[p + "norm.weight"], c.rms_norm_eps) * z;
    return apply_linear(y.reshape({u.size(0), value_width}), w[p + "out_proj.weight"]);
  }

  [[nodiscard]] at::Tensor taps(const std::string& name) const { return w[name]; }

  /// 0 where a document begins, else 1: [B, T, 1].
  [[nodiscard]] at::Tensor continues() const {
    at::Tensor same = at::zeros({batch_.n_rows, batch_.n_tokens, 1}, w.values().options());
    const std::int64_t n = batch_.n_tokens - 1;
    same.narrow(1, 1, n).copy_((documents_.narrow(1, 0, n) == documents_.narrow(1, 1, n)).unsqueeze(2));
    return same;
  }

  /// In the sparse phase each query sees the blocks that the indexer keeps and the incomplete one.
  at::Tensor sparse_attention(const std::string& p, const at::Tensor& u, std::size_t layer) {
    const auto heads = [&](const at::Tensor& x, std::int64_t width) {
      return x.reshape({batch_.n_rows, batch_.n_tokens, -1, width});
    };
    const at::Tensor q_and_gate = heads(apply_linear(u, w[p + "q_proj.weight"]), 2 * c.head_dim);
    const at::Tensor q = rotate_first(norm(q_and_gate.narrow(3, 0, c.head_dim), p + "q_norm.weight"), turn_);
    const at::Tensor gate = q_and_gate.narrow(3, c.head_dim, c.head_dim);
    const at::Tensor k =
        rotate_first(norm(heads(apply_linear(u, w[p + "k_proj.weight"]), c.head_dim), p + "k_norm.weight"), turn_);
    const at::Tensor v = heads(apply_linear(u, w[p + "v_proj.weight"]), c.head_dim);
    const at::Tensor scores = index_scores(p + "indexer.", u.detach());  // [B, T, blocks]
    const at::Tensor hidden = hidden_blocks();
    at::Tensor context;
    if (phase_.index_weight > 0) {
      at::Tensor p_dense;
      if (phase_.is_sparse) {
        const at::NoGradGuard no_gradients;
        masked_attention(q, k, v, masked_, &p_dense);
      } else {
        context = masked_attention(q, k, v, masked_, &p_dense);
      }
      add_loss(phase_.index_weight * divergence(p_dense.detach(), scores, hidden));
    }
    if (phase_.is_sparse) {
      const at::Tensor kept =
          choices_.choose(choices_.blocks, layer, [&] { return keep_blocks(scores.detach(), hidden); });
      context = masked_attention(q, k, v, at::logical_or(masked_, not_kept(kept)));
    } else if (!context.defined()) {
      context = masked_attention(q, k, v, masked_);
    }
    return apply_linear((context * at::sigmoid(gate)).reshape({u.size(0), -1}), w[p + "o_proj.weight"]);
  }

  [[nodiscard]] std::int64_t n_blocks() const { return batch_.n_tokens / c.indexer_compress_ratio; }

  [[nodiscard]] at::Tensor index_scores(const std::string& p, const at::Tensor& u) const {
    const std::int64_t r = c.indexer_compress_ratio;
    const at::Tensor both = apply_linear(u, w[p + "index_qk_proj.weight"])
                                .reshape({batch_.n_rows, batch_.n_tokens, c.indexer_n_heads + 1, c.indexer_head_dim});
    const at::Tensor q = rotate_first(norm(both.narrow(2, 0, c.indexer_n_heads), p + "q_layernorm.weight"), turn_);
    const at::Tensor mean = both.select(2, c.indexer_n_heads)
                                .narrow(1, 0, n_blocks() * r)
                                .reshape({batch_.n_rows, n_blocks(), r, c.indexer_head_dim})
                                .mean(2);
    const auto at_first_tokens = [&](const at::Tensor& angles) { return angles.slice(0, 0, n_blocks() * r, r); };
    const at::Tensor k = rotate_first(norm(mean.unsqueeze(2), p + "k_layernorm.weight"),
                                      {at_first_tokens(turn_.cos), at_first_tokens(turn_.sin)})
                             .squeeze(2);
    const at::Tensor products = at::bmm(q.reshape({batch_.n_rows, -1, c.indexer_head_dim}), k.transpose(1, 2))
                                    .reshape({batch_.n_rows, batch_.n_tokens, c.indexer_n_heads, n_blocks()});
    return at::relu(products).sum(2) / std::sqrt(static_cast<double>(c.indexer_head_dim));
  }

  /// Blocks that are not complete for a query or another document's: [B, T, blocks].
  [[nodiscard]] at::Tensor hidden_blocks() const {
    return masked_.narrow(2, 0, n_blocks() * c.indexer_compress_ratio)
        .slice(2, c.indexer_compress_ratio - 1, n_blocks() * c.indexer_compress_ratio, c.indexer_compress_ratio);
  }

  /// bool [B, T, blocks]: the visible blocks with the highest scores, ties to the lower block.
  [[nodiscard]] at::Tensor keep_blocks(const at::Tensor& scores, const at::Tensor& hidden) const {
    const std::int64_t n_kept = std::min(c.indexer_budget / c.indexer_compress_ratio, n_blocks());
    const at::Tensor order =
        std::get<1>(at::sort(scores.masked_fill(hidden, -1.0), /*stable=*/true, -1, /*descending=*/true))
            .narrow(2, 0, n_kept);
    return at::zeros_like(hidden).scatter_(2, order, true).logical_and(hidden.logical_not());
  }

  /// bool [B, T, T]: keys in complete blocks that were not kept.
  [[nodiscard]] at::Tensor not_kept(const at::Tensor& kept) const {
    const std::int64_t r = c.indexer_compress_ratio;
    const at::Tensor place = at::arange(batch_.n_tokens, at::kLong);
    const at::Tensor in_tail = place.unsqueeze(0) >= at::div(place + 1, r, "floor").unsqueeze(1) * r;
    const at::Tensor seen = at::constant_pad_nd(kept.repeat_interleave(r, 2), {0, batch_.n_tokens - n_blocks() * r}, 0);
    return at::logical_or(seen.to(at::kBool), in_tail).logical_not();
  }

  /// KL(dense attention's share of each block || softmax of the scores), the mean over queries that see two blocks.
  [[nodiscard]] at::Tensor divergence(const at::Tensor& p_dense, const at::Tensor& scores,
                                      const at::Tensor& hidden) const {
    const std::int64_t r = c.indexer_compress_ratio;
    const at::Tensor shares = p_dense.sum(at::IntArrayRef{1, 2})
                                  .narrow(2, 0, n_blocks() * r)
                                  .reshape({batch_.n_rows, batch_.n_tokens, n_blocks(), r})
                                  .sum(3)
                                  .masked_fill(hidden, 0);
    const at::Tensor target = shares / shares.sum(2, true).clamp_min(1e-9);
    const at::Tensor log_student = at::log_softmax(scores.masked_fill(hidden, -1e4), 2);
    const at::Tensor kl = (target * (at::log(target.clamp_min(1e-9)) - log_student)).sum(2);
    const at::Tensor counts = (hidden.logical_not().sum(2) >= 2).to(kl.scalar_type());
    return (kl * counts).sum() / counts.sum().clamp_min(1);
  }

  at::Tensor mixture(const std::string& p, const at::Tensor& u, std::size_t layer) {
    const at::Tensor z = apply_linear(u, w[p + "gate.weight"]);
    const at::Tensor ids = choices_.choose(choices_.expert_ids, layer,
                                           [&] { return std::get<1>(z.detach().topk(c.num_experts_per_tok, 1)); });
    const at::Tensor all = at::softmax(z, -1);
    const at::Tensor chosen = all.gather(1, ids);
    const at::Tensor load =
        at::bincount(ids.flatten(), {}, c.num_experts).to(z.scalar_type()) / static_cast<double>(ids.numel());
    add_loss(kBalanceWeight * static_cast<double>(c.num_experts) * (load * all.mean(0)).sum());
    const at::Tensor routed =
        routed_experts(u, ids, chosen / chosen.sum(1, true), w[p + "experts.gate_up_proj"], w[p + "experts.down_proj"]);
    return routed +
           at::sigmoid(apply_linear(u, w[p + "shared_expert_gate.weight"])) * swiglu(u, w, p + "shared_expert");
  }

  [[nodiscard]] at::Tensor ngram(const std::string& p, const at::Tensor& x) const {
    const at::Tensor e = at::embedding(w[p + "ple_embedding.ngram_embedding.weight"], table_rows()).flatten(1);
    const at::Tensor kappa = norm_streams(apply_linear(e, w[p + "key_proj.weight"]), p + "norm_key.weight");
    const at::Tensor phi = norm_streams(x, p + "norm_query.weight");
    const at::Tensor g = (kappa * phi).sum(2, true) / std::sqrt(static_cast<double>(c.hidden_size));
    const at::Tensor shaped = at::sign(g) * at::sqrt(at::clamp_min(at::abs(g), 1e-6));
    const at::Tensor gated =
        (at::sigmoid(shaped) * apply_linear(e, w[p + "value_proj.weight"]).unsqueeze(1)).flatten(1);
    const at::Tensor normed = norm_streams(gated, p + "norm_conv.weight").flatten(1);
    return gated + at::silu(causal_conv(normed, taps(p + "conv1d.weight"), c.ngram_size));
  }

  /// Each document's rows of the table: [N, heads]; row 0 where there is no document.
  [[nodiscard]] at::Tensor table_rows() const {
    const std::int64_t n_heads = c.n_ngram_heads();
    at::Tensor all = at::zeros({static_cast<std::int64_t>(batch_.ids.size()), n_heads}, at::kLong);
    for (std::size_t begin = 0; begin < batch_.ids.size();) {
      std::size_t end = begin + 1;
      while (end % static_cast<std::size_t>(batch_.n_tokens) != 0 && batch_.documents[end] == batch_.documents[begin])
        ++end;
      if (batch_.documents[begin] >= 0) {
        const std::vector<std::int32_t> ids(batch_.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                            batch_.ids.begin() + static_cast<std::ptrdiff_t>(end));
        const std::vector<std::int64_t> found = ngram_rows(hash_, ids);
        std::copy(found.begin(), found.end(),
                  all.data_ptr<std::int64_t>() + static_cast<std::int64_t>(begin) * n_heads);
      }
      begin = end;
    }
    return all;
  }

  const Qwen4ExpConfig& c;
  const NgramHash& hash_;
  const Weights& w;
  const Batch& batch_;
  const Phase& phase_;
  Choices& choices_;
  at::Tensor documents_;  // [B, T]
  at::Tensor masked_;     // [B, T, T]
  Rotation turn_;
  at::Tensor auxiliary_;
};

Format format_of(const Parameter& parameter) {
  if (parameter.name.find("ngram_embedding") != std::string::npos) return Format::fp8_one_scale;
  return parameter.name.find(".mlp.experts.") != std::string::npos ? Format::fp8 : Format::bf16;
}

nlohmann::ordered_json config_json(const Qwen4ExpConfig& c) {
  nlohmann::ordered_json types;
  for (const bool sparse : c.is_sparse) types.push_back(sparse ? "full_attention" : "linear_attention");
  const std::int64_t n_frequencies = c.rotary_dim / 2;
  const std::int64_t n_w = n_frequencies / 3;  // the released section is [11, 11, 10]
  const std::int64_t n_h = (n_frequencies - n_w) / 2;
  const nlohmann::ordered_json text = {
      {"model_type", "qwen4_exp_text"},
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_key_value_heads},
      {"head_dim", c.head_dim},
      {"max_position_embeddings", c.max_position_embeddings},
      {"hidden_act", "silu"},
      {"rms_norm_eps", c.rms_norm_eps},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"rope_parameters",
       {{"rope_type", "default"},
        {"rope_theta", c.rope_theta},
        {"partial_rotary_factor", static_cast<double>(c.rotary_dim) / static_cast<double>(c.head_dim)},
        {"mrope_interleaved", true},
        {"mrope_section", {n_frequencies - n_h - n_w, n_h, n_w}}}},
      {"layer_types", types},
      {"linear_conv_kernel_dim", c.linear_conv_kernel_dim},
      {"linear_key_head_dim", c.linear_key_head_dim},
      {"linear_value_head_dim", c.linear_value_head_dim},
      {"linear_num_key_heads", c.linear_num_key_heads},
      {"linear_num_value_heads", c.linear_num_value_heads},
      {"output_gate_type", "sigmoid"},
      {"hc_count", c.hc_count},
      {"hc_lowrank", c.hc_lowrank},
      {"ple_layer_ids", {c.ple_layers.front() + 1}},  // they count from one
      {"ple_embed_dim", c.ple_embed_dim},
      {"ple_conv_kernel_size", c.ple_conv_kernel_size},
      {"ngram_size", c.ngram_size},
      {"heads_per_ngram", c.heads_per_ngram},
      {"ngram_vocab_size_base", c.ngram_vocab_size_base},
      {"make_ngram_vocab_size_divisible_by", c.make_ngram_vocab_size_divisible_by},
      {"split_ngram_parts", kTableShards},
      {"seed", c.seed},
      {"indexer_n_heads", c.indexer_n_heads},
      {"indexer_kv_heads", 1},
      {"indexer_head_dim", c.indexer_head_dim},
      {"indexer_budget", c.indexer_budget},
      {"indexer_compress_ratio", c.indexer_compress_ratio},
      {"num_experts", c.num_experts},
      {"num_experts_per_tok", c.num_experts_per_tok},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"shared_expert_intermediate_size", c.shared_expert_intermediate_size},
      {"norm_topk_prob", true},
      {"bos_token_id", c.eos_token_id},
      {"eos_token_id", c.eos_token_id}};
  return {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
          {"model_type", "qwen4_exp"},
          {"text_config", text},
          {"tie_word_embeddings", false},
          {"quantization_config",
           {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}}}};
}

}  // namespace

Trainee make_qwen4_exp_trainee(bool nano) {
  const Qwen4ExpConfig c = nano ? nano_config() : tiny_config();
  const NgramHash hash = make_ngram_hash(c, 0);
  Trainee trainee;
  trainee.model_type = "qwen4_exp";
  trainee.layout.table = make_table(c, hash);
  trainee.vocab_size = c.vocab_size;
  trainee.n_experts = c.num_experts;
  trainee.alignment = c.indexer_compress_ratio;  // blocks are counted from a document's first token
  trainee.forward = [c, hash](const Weights& w, const Batch& batch, const Phase& phase, Choices& choices) {
    return Pass(c, hash, w, batch, phase, choices).run();
  };
  if (nano) trainee.shape_first_weights = [c](const Weights& w) { shape_first_weights(c, w); };  // tiny has no room
  trainee.layout.format = format_of;
  trainee.layout.n_table_shards = kTableShards;
  trainee.layout.scale_dtype = "BF16";
  trainee.layout.config_json = config_json(c).dump(1) + "\n";
  const nlohmann::ordered_json generation = {
      {"do_sample", true},
      {"eos_token_id", {c.eos_token_id + 2, c.eos_token_id}},  // <|im_end|> first
      {"pad_token_id", c.eos_token_id},
      {"temperature", 1.0},
      {"top_k", 20},
      {"top_p", 0.95}};
  trainee.layout.generation_config_json = generation.dump(1) + "\n";
  const std::string embedding = layer_name(static_cast<std::size_t>(c.ple_layers.front())) + "ple.ple_embedding.";
  trainee.layout.constants = {{embedding + "layer_multipliers", hash.multipliers},
                              {embedding + "ngram_heads_vocab_sizes", hash.sizes},
                              {embedding + "ngram_heads_offsets", hash.offsets}};
  return trainee;
}

}  // namespace kalibri::reference::training
