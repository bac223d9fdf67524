#include "engine/model/ngram_layer.hpp"

#include <algorithm>
#include <cmath>

#include "engine/kernels/kernels.hpp"
#include "engine/kernels/mutation.hpp"
#include "engine/kernels/scalar_math.hpp"
#include "engine/model/residual.hpp"

namespace kalibri::model {

using checkpoint::Qwen4ExpConfig;
using kernels::kernels;

namespace {

constexpr float kLeastGate = 1e-6F;  // under the root

/// The convolution looks this many positions back from tap to tap.
std::int64_t dilation(const Qwen4ExpConfig& c) { return KALIBRI_MUTATE(c.ngram_size, "ngram_conv_dilation_1", 1); }

/// sign(x) * sqrt(max(|x|, 1e-6)); sign(0) = 0.
float signed_root(float x) {
  if (x == 0.0F) return 0.0F;
  return std::copysign(std::sqrt(std::max(std::abs(x), kLeastGate)), x);
}

}  // namespace

NgramState::NgramState(const Qwen4ExpConfig& c)
    : ids(static_cast<std::size_t>(c.ngram_size - 1),
          static_cast<std::int32_t>(KALIBRI_MUTATE(c.eos_token_id, "ngram_history_zero", 0))),
      conv((c.ple_conv_kernel_size - 1) * dilation(c), c.residual_size()) {}

void NgramLayer::look_up(const NgramWeights& weights, NgramState& state, std::span<const std::int32_t> ids,
                         const TapWriter& taps) {
  const std::int64_t n = taps.n_rows;
  const std::int64_t n_heads = config_.ngram_heads();
  const std::int64_t row_size = weights.table->row_size();
  const auto n_back = state.ids.size();
  if (KALIBRI_MUTATE(false, "ngram_id_history_lost", taps.first_pos > 0)) state.ids = NgramState(config_).ids;
  std::vector<std::int32_t> joined = state.ids;
  joined.insert(joined.end(), ids.begin(), ids.end());
  state.ids.assign(joined.end() - static_cast<std::ptrdiff_t>(n_back), joined.end());
  float* embedding = embedding_.floats(n * config_.ple_embed_dim);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(n * n_heads));
  workers_.rows(n, 16, [&](std::int64_t t) {
    std::int64_t* token_rows = rows.data() + t * n_heads;
    weights.hash.rows(std::span(joined).subspan(static_cast<std::size_t>(t), n_back + 1), token_rows);
    for (std::int64_t head = 0; head < n_heads; ++head) {
      weights.table->read_row(token_rows[head], embedding + (t * n_heads + head) * row_size);
    }
    workers_.round(embedding + t * config_.ple_embed_dim, config_.ple_embed_dim);
  });
  taps.give("ngram_rows", {n_heads}, rows.data());
  taps.give("ngram_embedding", {config_.ple_embed_dim}, embedding);
}

void NgramLayer::gate(const NgramWeights& weights, const float* residual, std::int64_t n) {
  const std::int64_t h = config_.hidden_size;
  const std::int64_t width = config_.residual_size();
  const auto eps = static_cast<float>(KALIBRI_MUTATE(config_.rms_norm_eps, "norm_eps_1e-5", 1e-5));
  const float scale = KALIBRI_MUTATE(1.0F / std::sqrt(static_cast<float>(h)), "ngram_gate_not_scaled", 1.0F);
  float* keys = keys_.floats(0);
  const float* values = values_.floats(0);
  float* gated = gated_.floats(n * width);
  float* normed = normed_.floats(n * width);
  workers_.rows(n, 2, [&](std::int64_t t) {
    std::vector<float> query(static_cast<std::size_t>(h));
    for (std::int64_t s = 0; s < config_.hc_count; ++s) {
      const std::int64_t i = t * width + s * h;
      kernels().rms_norm(keys + i, weights.norm_key.data() + s * h, eps, h, keys + i);
      workers_.round(keys + i, h);
      kernels().rms_norm(residual + i, weights.norm_query.data() + s * h, eps, h, query.data());
      workers_.round(query.data(), h);
      const auto rounded = [&](float x) {
        workers_.round(&x, 1);
        return x;
      };
      const float product = rounded(rounded(kernels().dot(keys + i, query.data(), h)) * scale);
      const float root = rounded(KALIBRI_MUTATE(signed_root(product), "ngram_no_signed_root", product));
      kernels().scale(rounded(kernels::sigmoid_f32(root)), values + t * h, h, gated + i);
      workers_.round(gated + i, h);
      kernels().rms_norm(gated + i, weights.norm_conv.data() + s * h, eps, h, normed + i);
      workers_.round(normed + i, h);
    }
  });
}

void NgramLayer::convolve(const NgramWeights& weights, NgramState& state, float* residual, const TapWriter& taps) {
  const std::int64_t n = taps.n_rows;
  const std::int64_t width = config_.residual_size();
  const std::int64_t n_taps = config_.ple_conv_kernel_size;
  float* gated = gated_.floats(0);
  const float* mixed_rows = KALIBRI_MUTATE(normed_.floats(0), "ngram_conv_on_unnormed", gated);
  float* joined = joined_.floats((state.conv.n_kept() + n) * width);
  if (KALIBRI_MUTATE(false, "ngram_conv_history_lost", taps.first_pos > 0)) state.conv = NgramState(config_).conv;
  state.conv.extend(mixed_rows, n, joined);
  workers_.rows(n, 2, [&](std::int64_t t) {
    const float* rows[kernels::kMaxConvTaps];
    for (std::int64_t j = 0; j < n_taps; ++j) rows[j] = joined + (t + j * dilation(config_)) * width;
    std::vector<float> convolved(static_cast<std::size_t>(width));
    KALIBRI_MUTATE(kernels().conv_silu, "ngram_no_silu", kernels().conv)
    (rows, weights.conv.data(), n_taps, width, convolved.data());
    workers_.round(convolved.data(), width);
    if (KALIBRI_MUTATE(true, "ngram_no_conv", false)) kernels().add(convolved.data(), width, gated + t * width);
    workers_.round(gated + t * width, width);
    add_to_residual(workers_, width, residual + t * width,
                    [&](float* streams) { kernels().add(gated + t * width, width, streams); });
  });
  taps.give("ple_out", {width}, gated);
}

}  // namespace kalibri::model
