#include "engine/model/session.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "engine/base/available_memory.hpp"
#include "engine/base/error.hpp"
#include "engine/checkpoint/family.hpp"
#include "engine/model/kolibri1.hpp"
#include "engine/model/qwen4_exp.hpp"
#include "engine/model/weight_places.hpp"

namespace kalibri::model {

namespace {

ModelInfo describe(const Kolibri1Weights& weights) {
  const checkpoint::Kolibri1Config& c = weights.config;
  return {.model_type = "kolibri1",
          .n_layers = c.num_hidden_layers,
          .hidden_size = c.hidden_size,
          .n_streams = 1,
          .vocab_size = c.vocab_size,
          .n_experts = c.num_experts,
          .top_k = c.num_experts_per_tok,
          .max_positions = c.max_position_embeddings,
          .window = c.sliding_window};
}

ModelInfo describe(const Qwen4ExpWeights& weights) {
  const checkpoint::Qwen4ExpConfig& c = weights.config;
  return {.model_type = "qwen4_exp",
          .n_layers = c.num_hidden_layers,
          .hidden_size = c.hidden_size,
          .n_streams = c.hc_count,
          .vocab_size = c.vocab_size,
          .n_experts = c.num_experts,
          .top_k = c.num_experts_per_tok,
          .max_positions = c.max_position_embeddings,
          .window = c.indexer_budget,
          .chooses_from = c.indexer_budget + c.indexer_compress_ratio,
          .n_position_axes = 3};
}

/// The families. A further one joins here, with its weights and its sequence.
using Weights = std::variant<Kolibri1Weights, Qwen4ExpWeights>;
using Sequence = std::variant<Kolibri1Sequence, Qwen4ExpSequence>;
using State = std::variant<Kolibri1Sequence::State, Qwen4ExpSequence::State>;

Weights load(const checkpoint::Checkpoint& checkpoint, const runtime::Precision& precision,
             const runtime::ExpertCacheOptions& cache, const runtime::WeightPlaceOptions& place) {
  const std::string name = checkpoint::model_type(checkpoint);
  if (name == "kolibri1") return Weights(std::in_place_type<Kolibri1Weights>, checkpoint, precision, cache, place);
  if (name == "qwen4_exp" || name == "qwen4_exp_text")
    return Weights(std::in_place_type<Qwen4ExpWeights>, checkpoint, precision, cache, place);
  checkpoint::refuse_model_type(checkpoint);
}

struct Start {
  runtime::Workers& workers;
  std::int64_t max_tokens;
  Sequence operator()(const Kolibri1Weights& w) const {
    return Sequence(std::in_place_type<Kolibri1Sequence>, w, workers, max_tokens);
  }
  Sequence operator()(const Qwen4ExpWeights& w) const {
    return Sequence(std::in_place_type<Qwen4ExpSequence>, w, workers, max_tokens);
  }
};

}  // namespace

struct Model::Impl {
  runtime::Precision precision;
  Weights weights;
  ModelInfo info;
  runtime::WeightPlaceInfo place;
  bool has_cache;  // that was asked for
};

Model::Model(const checkpoint::Checkpoint& checkpoint, const runtime::Precision& precision,
             const runtime::ExpertCacheOptions& cache, const runtime::WeightPlaceOptions& place) {
  runtime::WeightPlaceOptions placing = place;
  std::int64_t needed = 0;
  std::int64_t available = 0;
  if (place.place == runtime::WeightPlace::automatic) {
    needed = needed_bytes(checkpoint, precision, cache, place.n_threads);
    available = place.available_bytes > 0 ? place.available_bytes : available_memory();
    if (needed > available) placing.place = runtime::WeightPlace::mapped;
  }
  impl_.reset(new Impl{precision, load(checkpoint, precision, cache, placing), {}, {}, cache.is_wanted()});
  std::visit(
      [&](const auto& weights) {
        impl_->info = describe(weights);
        impl_->place = weights.placed().info();
        const auto experts = weights.experts().cache();
        if (experts) impl_->place.expert_bytes = experts->n_layers * experts->n_slots * experts->slot_bytes;
      },
      impl_->weights);
  impl_->place.needed_bytes = needed;
  impl_->place.available_bytes = available;
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
const ModelInfo& Model::info() const { return impl_->info; }
const runtime::Precision& Model::precision() const { return impl_->precision; }

void Model::leave_layer(std::int64_t layer) const {
  std::visit([&](const auto& weights) { weights.leave_layer(layer); }, impl_->weights);
}

const runtime::WeightPlaceInfo& Model::weight_place() const { return impl_->place; }

std::optional<runtime::ExpertCacheInfo> Model::expert_cache() const {
  if (!impl_->has_cache) return {};
  return std::visit([](const auto& weights) { return weights.experts().cache(); }, impl_->weights);
}

runtime::ExpertStatistics Model::expert_statistics() const {
  return std::visit([](const auto& weights) { return weights.experts().statistics(); }, impl_->weights);
}

struct Session::Impl {
  const ModelInfo& info;
  SessionOptions options;
  runtime::Workers workers;
  Sequence sequence;
  std::int64_t position = 0;
  std::int64_t token_forwards = 0;
  std::vector<float> residual;

  Impl(const Model& model, ThreadPool& pool, const SessionOptions& session_options)
      : info(model.info()),
        options(session_options),
        workers(pool, model.precision().arithmetic),
        sequence(std::visit(Start{workers, session_options.max_tokens}, model.impl().weights)) {}

  /// Throws Error(input) unless the next tokens may go through the model.
  void check(std::span<const std::int32_t> ids) const {
    if (ids.empty()) throw Error(ErrorCode::input, "no tokens: a prompt has at least one");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= info.vocab_size) {
        throw Error(ErrorCode::input, "token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                                          ": expected 0 to " + std::to_string(info.vocab_size - 1) + " (vocab_size)");
      }
    }
  }

  /// Calls part(first, n) for the chunks of n_tokens.
  template <typename Part>
  void chunks(std::int64_t n_tokens, Part&& part) const {
    for (std::int64_t first = 0; first < n_tokens; first += options.chunk) {
      part(first, std::min(options.chunk, n_tokens - first));
    }
  }
};

Session::Session(const Model& model, ThreadPool& pool, const SessionOptions& options) {
  const std::int64_t longest = model.info().max_positions;
  if (options.max_tokens < 1 || options.max_tokens > longest) {
    throw Error(ErrorCode::input, "a sequence of " + std::to_string(options.max_tokens) + " tokens: expected 1 to " +
                                      std::to_string(longest) + " (max_position_embeddings)");
  }
  if (options.chunk < 1) throw Error(ErrorCode::usage, "a chunk holds at least one token");
  impl_ = std::make_unique<Impl>(model, pool, options);
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

void Session::forward(std::span<const std::int32_t> ids, std::span<float> logits, runtime::TapSink* taps) {
  Impl& s = *impl_;
  s.check(ids);
  const auto n_tokens = static_cast<std::int64_t>(ids.size());
  if (s.position + n_tokens > s.options.max_tokens) {
    throw Error(ErrorCode::input, std::to_string(s.position + n_tokens) + " tokens: this session holds " +
                                      std::to_string(s.options.max_tokens));
  }
  const auto n_logits = static_cast<std::int64_t>(logits.size()) / s.info.vocab_size;
  const std::int64_t first_wanted = n_tokens - n_logits;  // index of the first token whose logits are asked for
  const std::int64_t width = s.info.residual_size();
  std::vector<float> final_norm;
  s.chunks(n_tokens, [&](std::int64_t first, std::int64_t n) {
    s.residual.resize(static_cast<std::size_t>(std::max(static_cast<std::int64_t>(s.residual.size()), n * width)));
    const auto part = ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
    embed(part, s.residual.data());
    for (std::int64_t layer = 0; layer < s.info.n_layers; ++layer) {
      std::visit([&](auto& sequence) { sequence.run_layer(layer, part, s.residual.data(), taps); }, s.sequence);
    }
    const std::int64_t skipped = std::clamp<std::int64_t>(first_wanted - first, 0, n);
    if (skipped < n) {
      final_norm.resize(static_cast<std::size_t>((n - skipped) * s.info.hidden_size));
      head(s.residual.data() + skipped * width, n - skipped, final_norm.data(),
           logits.data() + (first + skipped - first_wanted) * s.info.vocab_size);
    }
    s.position += n;
    s.token_forwards += n;
  });
}

std::int64_t Session::position() const { return impl_->position; }
std::int64_t Session::token_forwards() const { return impl_->token_forwards; }

void Session::embed(std::span<const std::int32_t> ids, float* residual) const {
  impl_->check(ids);
  std::visit([&](const auto& sequence) { sequence.embed(ids, residual); }, impl_->sequence);
}

void Session::run_layer(std::int64_t layer, std::span<const std::int32_t> ids, float* residual,
                        runtime::TapSink* taps) {
  Impl& s = *impl_;
  s.chunks(static_cast<std::int64_t>(ids.size()), [&](std::int64_t first, std::int64_t n) {
    const auto part = ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
    std::visit(
        [&](auto& sequence) { sequence.run_layer(layer, part, residual + first * s.info.residual_size(), taps); },
        s.sequence);
  });
}

void Session::head(const float* residual, std::int64_t n, float* final_norm, float* logits) {
  std::visit([&](auto& sequence) { sequence.head(residual, n, final_norm, logits); }, impl_->sequence);
}

void Session::force(const runtime::ForcedChoices* choices) {
  std::visit([&](auto& sequence) { sequence.force(choices); }, impl_->sequence);
}

void Session::measure(runtime::PhaseClock* clock) { impl_->workers.measure(clock); }

class Session::Snapshot {
 public:
  std::int64_t position = 0;
  State state;
};

std::shared_ptr<const Session::Snapshot> Session::snapshot() const {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->position = impl_->position;
  std::visit([&](const auto& sequence) { snapshot->state = sequence.state(); }, impl_->sequence);
  return snapshot;
}

void Session::restore(const Snapshot& snapshot) {
  impl_->position = snapshot.position;
  std::visit(
      [&](auto& sequence) {
        sequence.restore(std::get<typename std::decay_t<decltype(sequence)>::State>(snapshot.state));
      },
      impl_->sequence);
}

}  // namespace kalibri::model
