#include "engine/model/delta_net.hpp"

#include <cmath>

#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"

namespace kalibri::model {

using checkpoint::Qwen4ExpConfig;
using kernels::kernels;

namespace {

constexpr float kL2Eps = 1e-6F;               // inside the root, added to the sum of squares
constexpr std::int64_t kColumnsPerTask = 32;  // of a head's state: a tile stays in the first-level cache over time

#ifdef KALIBRI_MUTANTS
/// The delta rule with one of two mistakes in each column: the memory read before its decay, or the output before its
/// update.
void wrong_delta_rule(const kernels::DeltaTile& tile) {
  const bool reads_early = mutation::active("delta_read_before_decay");
  for (std::int64_t t = 0; t < tile.n_tokens; ++t) {
    const float* q = tile.q + t * tile.qkv_stride;
    const float* k = tile.k + t * tile.qkv_stride;
    for (std::int64_t c = 0; c < tile.n_columns; ++c) {
      float p = 0;
      float o = 0;
      for (std::int64_t i = 0; i < tile.dk; ++i) {
        float& s = tile.state[i * tile.state_stride + c];
        const float before = s;
        s *= tile.alpha[t * tile.gate_stride];
        p += k[i] * (reads_early ? before : s);
        if (!reads_early) o += q[i] * s;
      }
      const float d = tile.beta[t * tile.gate_stride] * (tile.v[t * tile.qkv_stride + c] - p);
      for (std::int64_t i = 0; i < tile.dk; ++i) {
        float& s = tile.state[i * tile.state_stride + c];
        s += k[i] * d;
        if (reads_early) o += q[i] * s;
      }
      tile.out[t * tile.out_stride + c] = o;
    }
  }
}
#endif

std::int64_t conv_channels(const Qwen4ExpConfig& c) { return 2 * c.delta_key_size() + c.delta_value_size(); }

}  // namespace

DeltaNetState::DeltaNetState(const Qwen4ExpConfig& c)
    : memory(static_cast<std::size_t>(c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim)),
      conv(c.linear_conv_kernel_dim - 1, conv_channels(c)) {}

void DeltaNet::project(const kernels::MatrixView& qkv, const kernels::MatrixView& z, const kernels::MatrixView& b,
                       const kernels::MatrixView& a, const float* u, std::int64_t n) {
  linear(workers_, qkv, u, n, qkv_.floats(n * qkv.n_rows));
  linear(workers_, z, u, n, z_.floats(n * z.n_rows));
  linear(workers_, b, u, n, beta_.floats(n * b.n_rows));
  linear(workers_, a, u, n, alpha_.floats(n * a.n_rows));
}

void DeltaNet::normalise_heads(float* mixed, std::int64_t n) const {
  const std::int64_t dk = config_.linear_key_head_dim;
  const std::int64_t n_heads = config_.linear_num_key_heads;
  const float q_scale = KALIBRI_MUTATE(1.0F / std::sqrt(static_cast<float>(dk)), "delta_q_not_scaled", 1.0F);
  workers_.rows(n, 2, [&](std::int64_t t) {
    float* row = mixed + t * conv_channels(config_);
    for (std::int64_t head = 0; head < 2 * n_heads; ++head) {  // the queries' heads, then the keys'
      float* x = row + head * dk;
      const float norm = std::sqrt(kernels().dot(x, x, dk) + kL2Eps);
      kernels().scale(KALIBRI_MUTATE(1.0F / norm, "delta_no_l2_norm", 1.0F), x, dk, x);
      workers_.round(x, dk);
      if (head < n_heads) kernels().scale(q_scale, x, dk, x);
    }
  });
}

void DeltaNet::decays(const DeltaNetWeights& weights, std::int64_t n) {
  const std::int64_t n_heads = config_.linear_num_value_heads;
  float* alpha = alpha_.floats(0);
  float* beta = beta_.floats(0);
  kernels().sigmoid(beta, n * n_heads, beta);
  workers_.round(beta, n * n_heads);
  for (std::int64_t head = 0; head < n_heads; ++head) {
    const auto h = static_cast<std::size_t>(head);
    const float rate = -kernels::exp_f32(weights.a_log[h]);
    for (std::int64_t t = 0; t < n; ++t) {
      float& a = alpha[t * n_heads + head];
      const float shifted = KALIBRI_MUTATE(a + weights.dt_bias[h], "delta_dt_bias_dropped", a);
      a = kernels::exp_f32(rate * kernels::softplus_f32(shifted));
    }
  }
}

void DeltaNet::mix(const DeltaNetWeights& weights, DeltaNetState& state, const TapWriter& taps) {
  const Qwen4ExpConfig& c = config_;
  const std::int64_t n = taps.n_rows;
  const std::int64_t channels = conv_channels(c);
  const std::int64_t n_taps = c.linear_conv_kernel_dim;
  const std::int64_t dk = c.linear_key_head_dim;
  const std::int64_t dv = c.linear_value_head_dim;
  const std::int64_t n_heads = c.linear_num_value_heads;
  float* joined = joined_.floats((n_taps - 1 + n) * channels);
  float* mixed = mixed_.floats(n * channels);
  float* core = core_.floats(n * n_heads * dv);
  const float* z = z_.floats(0);

  if (KALIBRI_MUTATE(false, "delta_conv_history_lost", taps.first_pos > 0))
    state.conv = RowHistory(n_taps - 1, channels);
  state.conv.extend(qkv_.floats(0), n, joined);
  workers_.rows(n, 2, [&](std::int64_t t) {
    const float* rows[kernels::kMaxConvTaps];
    for (std::int64_t j = 0; j < n_taps; ++j) rows[j] = joined + (t + j) * channels;
    KALIBRI_MUTATE(kernels().conv_silu, "delta_no_silu", kernels().conv)
    (rows, weights.conv.data(), n_taps, channels, mixed + t * channels);
    workers_.round(mixed + t * channels, channels);
  });
  normalise_heads(mixed, n);
  decays(weights, n);

  workers_.enter(runtime::Phase::attention);
  const std::int64_t tiles_per_head = (dv + kColumnsPerTask - 1) / kColumnsPerTask;
  const std::int64_t ratio = n_heads / c.linear_num_key_heads;
  workers_.each(n_heads * tiles_per_head, [&](std::int64_t task, int) {
    const std::int64_t head = task / tiles_per_head;
    const std::int64_t first = task % tiles_per_head * kColumnsPerTask;
    const std::int64_t key_head = KALIBRI_MUTATE(head / ratio, "delta_key_heads_tiled", head % c.linear_num_key_heads);
    kernels::DeltaTile tile;
    tile.n_tokens = n;
    tile.dk = dk;
    tile.n_columns = std::min(kColumnsPerTask, dv - first);
    tile.q = mixed + key_head * dk;
    tile.k = mixed + c.delta_key_size() + key_head * dk;
    tile.v = mixed + 2 * c.delta_key_size() + head * dv + first;
    tile.qkv_stride = channels;
    tile.alpha = alpha_.floats(0) + head;
    tile.beta = beta_.floats(0) + head;
    tile.gate_stride = n_heads;
    tile.state = state.memory.data() + head * dk * dv + first;
    tile.state_stride = dv;
    tile.out = core + head * dv + first;
    tile.out_stride = n_heads * dv;
    [[maybe_unused]] const bool is_decode = taps.first_pos > 0 && n == 1;  // where the defects below are
    KALIBRI_MUTATE(KALIBRI_MUTATE(kernels().delta_rule, "delta_read_before_decay",
                                  is_decode ? wrong_delta_rule : kernels().delta_rule),
                   "delta_output_before_update", is_decode ? wrong_delta_rule : kernels().delta_rule)
    (tile);
  });
  workers_.enter(runtime::Phase::mixer);
  workers_.round_rows(core, n, n_heads * dv);
  taps.give("delta_core", {n_heads, dv}, core);

  const auto eps = static_cast<float>(KALIBRI_MUTATE(c.rms_norm_eps, "delta_norm_eps_1e-5", 1e-5));
  const bool is_sigmoid = KALIBRI_MUTATE(c.output_gate == checkpoint::OutputGate::sigmoid, "delta_gate_silu", false);
  workers_.rows(n, 2, [&](std::int64_t t) {
    std::vector<float> gate(z + t * n_heads * dv, z + (t + 1) * n_heads * dv);
    float* row = core + t * n_heads * dv;
    (is_sigmoid ? kernels().sigmoid : kernels().silu)(gate.data(), n_heads * dv, gate.data());
    if (KALIBRI_MUTATE(false, "delta_gate_before_norm", true)) kernels().multiply(gate.data(), n_heads * dv, row);
    for (std::int64_t head = 0; head < n_heads; ++head) {
      float* x = row + head * dv;
      if (workers_.arithmetic().rounds()) {  // before the weight, too
        kernels().rms_norm(x, nullptr, eps, dv, x);
        workers_.round(x, dv);
        kernels().multiply(weights.norm.data(), dv, x);
        workers_.round(x, dv);
      } else {
        kernels().rms_norm(x, weights.norm.data(), eps, dv, x);
      }
    }
    if (KALIBRI_MUTATE(true, "delta_gate_before_norm", false)) kernels().multiply(gate.data(), n_heads * dv, row);
    workers_.round(row, n_heads * dv);
  });
}

}  // namespace kalibri::model
