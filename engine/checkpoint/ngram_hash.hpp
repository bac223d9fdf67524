// Which rows of the n-gram table a token reads. Integers alone: 64-bit products that by construction do not overflow.
// Source: transformers, modeling_qwen4_exp.py, Qwen4ExpNgramEmbedding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/checkpoint/qwen4_exp_config.hpp"

namespace kalibri::checkpoint {

/// The constants of one n-gram module (of one PLE layer).
struct NgramHash {
  std::vector<std::int64_t> multipliers;  // [ngram_size], odd; id * multiplier < 2^63
  std::vector<std::int64_t> sizes;        // [heads]: primes
  std::vector<std::int64_t> offsets;      // [heads]: running sums of the sizes, over all heads before
  std::int64_t n_rows = 0;                // of the table: the sizes' sum, rounded up to the divisor
  std::int64_t heads_per_ngram = 0;
  std::int64_t eos_token_id = 0;

  /// Rows [heads] for the token `ids[n - 1]`; `ids` holds it and its predecessors, oldest first, with EOS where the
  /// sequence has not begun: ngram_size ids. What lies before an EOS is not seen by the tokens after it.
  void rows(std::span<const std::int32_t> ids, std::int64_t* rows) const;
};

/// What config.json's numbers ask for. module: index into ple_layer_ids, not the layer's number.
struct NgramHashOptions {
  std::int64_t module = 0;
  std::int64_t vocab_size = 0;
  std::int64_t ngram_size = 0;
  std::int64_t heads_per_ngram = 0;
  std::int64_t vocab_size_base = 0;
  std::int64_t divisible_by = 0;
  std::int64_t seed = 0;
  std::int64_t eos_token_id = 0;
};
NgramHash make_ngram_hash(const NgramHashOptions& options);
NgramHash make_ngram_hash(const Qwen4ExpConfig& config, std::int64_t module);

}  // namespace kalibri::checkpoint
