#include "engine/checkpoint/ngram_hash.hpp"

#include <algorithm>
#include <limits>

#include "engine/kernels/mutation.hpp"

namespace kalibri::checkpoint {

namespace {

std::uint64_t splitmix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
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

void NgramHash::rows(std::span<const std::int32_t> ids, std::int64_t* rows) const {
  const std::size_t n = ids.size();
  std::vector<std::int64_t> seen(n);  // seen[k]: the token k places back, or EOS where an EOS lies between
  bool cut = false;
  for (std::size_t k = 0; k < n; ++k) {
    const std::int64_t token = ids[n - 1 - k];
    seen[k] = cut ? eos_token_id : token;
    // An EOS hides what lies before it from the tokens after it, but sees its own predecessors.
    const bool cuts = k > 0 || KALIBRI_MUTATE(false, "ngram_eos_cuts_own_history", true);
    if (cuts && token == eos_token_id) cut = KALIBRI_MUTATE(true, "ngram_eos_does_not_cut", false);
  }
  std::uint64_t hash = static_cast<std::uint64_t>(seen[0]) * static_cast<std::uint64_t>(multipliers[0]);
  std::size_t head = 0;
  for (std::size_t k = 1; k < n; ++k) {
    const std::uint64_t term = static_cast<std::uint64_t>(seen[k]) * static_cast<std::uint64_t>(multipliers[k]);
    hash = KALIBRI_MUTATE(hash ^ term, "ngram_add_for_xor", hash + term);
    for (std::int64_t i = 0; i < heads_per_ngram; ++i, ++head) {
      const auto place = static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(sizes[head]));
      rows[head] = KALIBRI_MUTATE(offsets[head] + place, "ngram_offsets_dropped", place);
    }
  }
}

NgramHash make_ngram_hash(const NgramHashOptions& o) {
  NgramHash hash;
  hash.heads_per_ngram = o.heads_per_ngram;
  hash.eos_token_id = o.eos_token_id;
  const auto module = static_cast<std::uint64_t>(o.module);
  const std::uint64_t half = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / o.vocab_size) / 2);
  for (std::int64_t q = 0; q < o.ngram_size; ++q) {
    const std::uint64_t start =
        static_cast<std::uint64_t>(o.seed) + 10007U * module + 0x9E3779B97F4A7C15U * static_cast<std::uint64_t>(q + 1);
    hash.multipliers.push_back(static_cast<std::int64_t>(2 * (splitmix64(start) % half) + 1));
  }
  const std::int64_t heads = (o.ngram_size - 1) * o.heads_per_ngram;
  // The sequence of primes goes on from module to module.
  std::int64_t n_skipped = o.module * heads;
  for (std::int64_t prime = o.vocab_size_base; static_cast<std::int64_t>(hash.sizes.size()) < heads; ++prime) {
    if (!is_prime(prime)) continue;
    if (n_skipped-- > 0) continue;
    hash.offsets.push_back(hash.n_rows);
    hash.sizes.push_back(prime);
    hash.n_rows += prime;
  }
  hash.n_rows = (hash.n_rows + o.divisible_by - 1) / o.divisible_by * o.divisible_by;
  return hash;
}

NgramHash make_ngram_hash(const Qwen4ExpConfig& c, std::int64_t module) {
  return make_ngram_hash({.module = module,
                          .vocab_size = c.vocab_size,
                          .ngram_size = c.ngram_size,
                          .heads_per_ngram = c.heads_per_ngram,
                          .vocab_size_base = c.ngram_vocab_size_base,
                          .divisible_by = c.make_ngram_vocab_size_divisible_by,
                          .seed = c.seed,
                          .eos_token_id = c.eos_token_id});
}

}  // namespace kalibri::checkpoint
