// Training runs: from token ids to weights, and what the weights are worth on held-out prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace kalibri::reference::training {

struct TrainOptions {
  std::string model_type;     // kolibri1 | qwen4_exp
  std::string size = "nano";  // nano | tiny
  std::filesystem::path ids;  // {"ids": [...]} a line
  std::filesystem::path run;  // folder of the run's state: an existing one is continued
  std::int64_t n_steps = 2500;
  std::int64_t n_rows = 4;  // of a batch
  std::int64_t row_tokens = 512;
  double rate = 2e-3;  // of learning, at its highest
  std::int64_t n_warmup = 100;
  double index_from = 0.25;     // of the steps: from there the indexer learns from dense attention,
  double sparse_from = 0.5;     // from there attention is sparse
  std::int64_t stop_after = 0;  // steps of this session; 0: all
  double save_seconds = 180;
  std::int64_t log_every = 20;  // steps
  std::uint64_t seed = 1;
  int threads = 2;
};

/// Trains until n_steps are done, writing the state now and then, and at the end. Prints a line of figures now and
/// then. With the same options and one thread the result is the same bits, however often the run is killed. Throws
/// Error.
void train(const TrainOptions& options);

struct ScoreOptions {
  std::filesystem::path run;
  std::filesystem::path prompts, whole;  // ids of prompts, and of prompts with their answers, line by line
  int threads = 2;
};

struct Score {
  std::int64_t n_prompts = 0;
  double exact = 0;           // share of answers that greedy decoding gives whole
  double token_accuracy = 0;  // of the answers' tokens, each after the true ones before it
  double answer_nats = 0;     // mean over the answers' tokens
  double prompt_nats = 0;     // mean over the prompts' tokens
};

/// Throws Error.
Score score(const ScoreOptions& options);

}  // namespace kalibri::reference::training
