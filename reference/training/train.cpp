#include "reference/training/train.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "reference/error.hpp"
#include "reference/training/optimiser.hpp"
#include "reference/training/run_file.hpp"
#include "reference/training/trainee.hpp"

namespace kalibri::reference::training {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBiasRate = 0.02;  // of a logit a step, while the learning rate is at its highest

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::span<float> span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// How often each expert was chosen.
std::vector<std::int64_t> count_choices(const at::Tensor& ids, std::int64_t n_experts) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(n_experts), 0);
  const at::Tensor flat = ids.contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i) ++counts[static_cast<std::size_t>(flat.data_ptr<std::int64_t>()[i])];
  return counts;
}

/// Raises the bias of an expert that was chosen less often than the mean and lowers that of the others. Source: Wang et
/// al., Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts (2024), algorithm 1.
void balance(const Trainee& trainee, const Weights& weights, const Choices& choices, double rate) {
  const at::NoGradGuard no_gradients;
  for (std::size_t layer = 0; layer < trainee.bias_names.size(); ++layer) {
    const std::vector<std::int64_t> counts = count_choices(choices.expert_ids[layer], trainee.n_experts);
    float* const bias = weights[trainee.bias_names[layer]].data_ptr<float>();
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const std::int64_t excess = counts[e] * trainee.n_experts - choices.expert_ids[layer].numel();
      bias[e] -= static_cast<float>(excess > 0 ? rate : excess < 0 ? -rate : 0);
    }
  }
}

/// The least used expert of all layers, as a share of the mean.
double least_load(const Trainee& trainee, const Choices& choices) {
  double least = 1;
  for (const at::Tensor& ids : choices.expert_ids) {
    const std::vector<std::int64_t> counts = count_choices(ids, trainee.n_experts);
    const auto fewest = static_cast<double>(*std::ranges::min_element(counts));
    least = std::min(least, fewest * static_cast<double>(trainee.n_experts) / static_cast<double>(ids.numel()));
  }
  return least;
}

/// The weights of a run, and the optimiser's means, in place.
RunState begin_or_continue(const TrainOptions& options, const Trainee& trainee, const Weights& weights, Adam& adam) {
  RunState state{options.model_type, options.size, 0, 0, {}, {}, {}};
  if (!has_run_state(options.run)) {
    std::filesystem::create_directories(options.run);
    initialise(trainee.layout.table, options.seed, weights.values());
    if (trainee.shape_first_weights) trainee.shape_first_weights(weights);
    return state;
  }
  state = read_run_state(options.run);
  if (state.model_type != options.model_type || state.size != options.size ||
      state.values.size() != static_cast<std::size_t>(trainee.layout.table.n_elements)) {
    throw Error(options.run.string() + ": holds another model's run (" + state.model_type + ", " + state.size +
                "): name a new folder");
  }
  std::ranges::copy(state.values, span_of(weights.values()).begin());
  adam.mean = state.mean;
  adam.square = state.square;
  return state;
}

void save(const TrainOptions& options, RunState& state, const at::Tensor& values, const Adam& adam) {
  state.values.assign(span_of(values).begin(), span_of(values).end());
  state.mean = adam.mean;
  state.square = adam.square;
  write_run_state(options.run, state);
}

/// A document alone in a row, the row filled up to n_tokens.
void put_in_row(Batch& batch, std::int64_t row, const Ids& ids) {
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const auto place = static_cast<std::size_t>(row * batch.n_tokens) + t;
    batch.ids[place] = ids[t];
    batch.documents[place] = 0;
    if (t + 1 < ids.size()) batch.targets[place] = ids[t + 1];
  }
}

void train_unguarded(const TrainOptions& options) {
  at::set_num_threads(options.threads);
  const Trainee trainee = make_trainee(options.model_type, options.size);
  const std::vector<Ids> documents = read_ids(options.ids, trainee.vocab_size);
  const Weights weights(trainee.layout.table, at::kFloat);
  Adam adam(trainee.layout.table);
  RunState state = begin_or_continue(options, trainee, weights, adam);
  const std::int64_t last =
      options.stop_after > 0 ? std::min(options.n_steps, state.step + options.stop_after) : options.n_steps;
  Clock::time_point saved = Clock::now();
  Clock::time_point logged = saved;
  double loss_sum = 0;
  std::int64_t n_tokens = 0;
  while (state.step < last) {
    std::size_t next = state.next_document;
    const Batch batch = pack(documents, next, options.n_rows, options.row_tokens, trainee.alignment);
    const double progress = static_cast<double>(state.step) / static_cast<double>(options.n_steps);
    const Phase phase{progress >= options.sparse_from, progress >= options.index_from ? 1.0 : 0.0};
    Choices choices;
    weights.grads().zero_();
    const Outputs outputs = trainee.forward(weights, batch, phase, choices);
    const at::Tensor loss = target_loss(outputs.logits, batch);
    (outputs.auxiliary.defined() ? loss + outputs.auxiliary : loss).backward();
    const double rate = learning_rate(options.rate, state.step + 1, options.n_warmup, options.n_steps);
    const double norm = adam.step(span_of(weights.values()), span_of(weights.grads()), state.step + 1, rate);
    balance(trainee, weights, choices, kBiasRate * rate / options.rate);
    ++state.step;
    state.next_document = next;
    loss_sum += loss.item<double>();
    n_tokens += std::ranges::count_if(batch.documents, [](std::int32_t number) { return number >= 0; });
    if (state.step % options.log_every == 0 || state.step == last) {
      const std::int64_t n_logged =
          state.step % options.log_every == 0 ? options.log_every : state.step % options.log_every;
      std::printf(
          "step %ld of %ld, document %zu of %zu: loss %.4f, gradient %.2f, rate %.2e, least expert %.2f, %.0f "
          "tokens/s\n",
          state.step, options.n_steps, next, documents.size(), loss_sum / static_cast<double>(n_logged), norm, rate,
          least_load(trainee, choices), static_cast<double>(n_tokens) / seconds_since(logged));
      std::fflush(stdout);
      loss_sum = 0;
      n_tokens = 0;
      logged = Clock::now();
    }
    if (seconds_since(saved) >= options.save_seconds || state.step == last) {
      save(options, state, weights.values(), adam);
      saved = Clock::now();
    }
  }
}

Score score_unguarded(const ScoreOptions& options) {
  const at::NoGradGuard no_gradients;
  at::set_num_threads(options.threads);
  const RunState state = read_run_state(options.run);
  const Trainee trainee = make_trainee(state.model_type, state.size);
  const Weights weights(trainee.layout.table, at::kFloat);
  if (state.values.size() != span_of(weights.values()).size())
    throw Error(options.run.string() + ": is of another version");
  std::ranges::copy(state.values, span_of(weights.values()).begin());
  const std::vector<Ids> prompts = read_ids(options.prompts, trainee.vocab_size);
  const std::vector<Ids> whole = read_ids(options.whole, trainee.vocab_size);
  if (prompts.size() != whole.size()) throw Error(options.whole.string() + ": has not as many lines as the prompts");
  Score score;
  std::int64_t n_exact = 0, n_right = 0, n_answer = 0, n_prompt = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto length = static_cast<std::int64_t>(whole[i].size());
    const auto n = static_cast<std::size_t>(length);
    Batch batch{1, length, std::vector<std::int64_t>(n, 0), std::vector<std::int32_t>(n, -1),
                std::vector<std::int64_t>(n, -100)};
    put_in_row(batch, 0, whole[i]);
    Choices choices;
    const at::Tensor logits = trainee.forward(weights, batch, {}, choices).logits.narrow(0, 0, length - 1);
    const at::Tensor targets = at::tensor(batch.targets, at::kLong).narrow(0, 0, length - 1);
    const at::Tensor nats = -at::log_softmax(logits, 1).gather(1, targets.unsqueeze(1)).squeeze(1);
    const at::Tensor right = logits.argmax(1) == targets;
    const auto answer =
        static_cast<std::int64_t>(prompts[i].size()) - 1;  // the row that gives the answer's first token
    const std::int64_t n_good = right.slice(0, answer).sum().item<std::int64_t>();
    n_exact += n_good == length - 1 - answer ? 1 : 0;
    n_right += n_good;
    n_answer += length - 1 - answer;
    n_prompt += answer;
    score.answer_nats += nats.slice(0, answer).sum().item<double>();
    score.prompt_nats += nats.slice(0, 0, answer).sum().item<double>();
  }
  score.n_prompts = static_cast<std::int64_t>(whole.size());
  score.exact = static_cast<double>(n_exact) / static_cast<double>(whole.size());
  score.token_accuracy = static_cast<double>(n_right) / static_cast<double>(n_answer);
  score.answer_nats /= static_cast<double>(n_answer);
  score.prompt_nats /= static_cast<double>(n_prompt);
  return score;
}

/// LibTorch's errors are ours: no input may lead there.
template <typename Body>
auto guarded(Body body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw InternalError(error.what_without_backtrace());
  }
}

}  // namespace

void train(const TrainOptions& options) {
  guarded([&] { train_unguarded(options); });
}

Score score(const ScoreOptions& options) {
  return guarded([&] { return score_unguarded(options); });
}

}  // namespace kalibri::reference::training
