#include "reference/ngram_hash.hpp"

#include <algorithm>
#include <limits>

namespace kalibri::reference {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

std::uint64_t splitmix64(std::uint64_t z) {
  z += kGolden;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

bool is_prime(std::int64_t n) {
  if (n < 2) return false;
  for (std::int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

NgramHash make_ngram_hash(const Qwen4ExpConfig& config, std::int64_t module) {
  NgramHash hash;
  hash.heads_per_ngram = config.heads_per_ngram;
  hash.eos_token_id = config.eos_token_id;
  const std::int64_t half = std::max<std::int64_t>(1, std::numeric_limits<std::int64_t>::max() / config.vocab_size / 2);
  const auto start = static_cast<std::uint64_t>(config.seed) + 10007 * static_cast<std::uint64_t>(module);
  for (std::int64_t q = 0; q < config.ngram_size; ++q) {
    const std::uint64_t random = splitmix64(start + kGolden * static_cast<std::uint64_t>(q + 1));
    hash.multipliers.push_back(2 * static_cast<std::int64_t>(random % static_cast<std::uint64_t>(half)) + 1);
  }
  // The sequence of primes continues from one module to the next.
  const std::int64_t n_heads = config.n_ngram_heads();
  std::int64_t total = 0;
  std::int64_t candidate = config.ngram_vocab_size_base;
  for (std::int64_t n_found = 0; n_found < (module + 1) * n_heads; ++candidate) {
    if (!is_prime(candidate)) continue;
    if (n_found++ < module * n_heads) continue;
    hash.sizes.push_back(candidate);
    hash.offsets.push_back(total);
    total += candidate;
  }
  const std::int64_t divisor = config.make_ngram_vocab_size_divisible_by;
  hash.n_table_rows = (total + divisor - 1) / divisor * divisor;
  return hash;
}

std::vector<std::int64_t> ngram_rows(const NgramHash& hash, std::span<const std::int32_t> tokens) {
  const std::size_t n_orders = hash.multipliers.size() - 1;  // bigram, trigram, …
  std::vector<std::int64_t> rows;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    std::size_t head = 0;
    std::int64_t x = tokens[t] * hash.multipliers[0];
    bool is_cut = false;  // by an EOS at one of the places t-k … t-1, or by the beginning
    for (std::size_t k = 1; k <= n_orders; ++k) {
      is_cut = is_cut || k > t || tokens[t - k] == hash.eos_token_id;
      x ^= (is_cut ? hash.eos_token_id : tokens[t - k]) * hash.multipliers[k];
      for (std::int64_t i = 0; i < hash.heads_per_ngram; ++i, ++head) {
        rows.push_back(hash.offsets[head] + x % hash.sizes[head]);
      }
    }
  }
  return rows;
}

}  // namespace kalibri::reference
