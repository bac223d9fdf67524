// Which rows of an n-gram table a token's history reads. Integers only. Source: transformers,
// modeling_qwen4_exp.py, n-gram hash.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/qwen4_exp_config.hpp"

namespace kalibri::reference {

struct NgramHash {
  std::vector<std::int64_t> multipliers;  // [ngram_size], by distance from the current token
  std::vector<std::int64_t> sizes;        // [heads], each a prime
  std::vector<std::int64_t> offsets;      // [heads], running sum of sizes
  std::int64_t n_table_rows = 0;          // sum of sizes, rounded up
  std::int64_t heads_per_ngram = 0;
  std::int64_t eos_token_id = 0;
};

/// The constants of n-gram layer number `module`: 0 for the first of ple_layer_ids, 1 for the second, …
NgramHash make_ngram_hash(const Qwen4ExpConfig& config, std::int64_t module);

/// Rows of the table for each token: [tokens.size(), heads], bigram heads first. An EOS hides what lies before it from
/// the tokens after it; what is hidden or does not exist counts as EOS.
std::vector<std::int64_t> ngram_rows(const NgramHash& hash, std::span<const std::int32_t> tokens);

}  // namespace kalibri::reference
