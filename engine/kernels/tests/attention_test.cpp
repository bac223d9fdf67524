// Attention: every table against the scalar definition, on bits, for any number of keys and cut of the ring.
#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

using namespace test;

/// The output over keys and values cut into two runs of their own after n_first keys.
std::vector<float> attend(const KernelTable& table, const std::vector<float>& query, const std::vector<float>& keys,
                          const std::vector<float>& values, std::int64_t row_stride, std::int64_t n_first) {
  const auto head_dim = static_cast<std::int64_t>(query.size());
  const std::int64_t n_keys = (static_cast<std::int64_t>(keys.size()) + row_stride - head_dim) / row_stride;
  const auto cut = static_cast<std::size_t>(n_first * row_stride);
  const auto first = [cut](const std::vector<float>& all) { return std::span(all).first(std::min(cut, all.size())); };
  const auto rest = [cut](const std::vector<float>& all) { return std::span(all).subspan(std::min(cut, all.size())); };
  const Guarded<float> keys_a(first(keys), 0), keys_b(rest(keys), 0);
  const Guarded<float> values_a(first(values), 0), values_b(rest(values), 0);
  const Guarded<float> guarded_query(query, 1), scores(n_keys, 1), out(head_dim, 1);
  const KeyRun runs[] = {{keys_a.data(), values_a.data(), n_first}, {keys_b.data(), values_b.data(), n_keys - n_first}};
  table.attention({.queries = guarded_query.data(),
                   .runs = runs,
                   .n_runs = 2,
                   .row_stride = row_stride,
                   .head_dim = head_dim,
                   .scale = 0.3F,
                   .scores = scores.data(),
                   .out = out.data()});
  CHECK(scores.surroundings_intact());
  CHECK(out.surroundings_intact());
  return out.values();
}

struct Inputs {
  Inputs(Generator& random, std::int64_t head_dim, std::int64_t n_keys, std::int64_t stride)
      : query(uniform_vector(random, head_dim)),
        keys(uniform_vector(random, (n_keys - 1) * stride + head_dim)),
        values(uniform_vector(random, (n_keys - 1) * stride + head_dim)) {}
  std::vector<float> query, keys, values;
};

TEST_CASE("attention has the scalar bits for any number of keys and any cut") {
  for (const std::int64_t head_dim : {1, 8, 33, 64, 72, 128, 150, 256}) {
    for (const std::int64_t n_keys : {1, 2, 15, 16, 17, 31, 32, 33, 65, 130}) {
      Generator random(static_cast<std::uint64_t>(head_dim * 1000 + n_keys));
      KALIBRI_SEED(random);
      const std::int64_t stride = head_dim + random.below(40);
      const Inputs in(random, head_dim, n_keys, stride);
      const std::vector<float> expected = attend(scalar(), in.query, in.keys, in.values, stride, n_keys);
      for (const KernelTable* table : tables_under_test()) {
        for (const std::int64_t n_first : {std::int64_t{0}, random.below(n_keys), n_keys}) {
          INFO(table->isa << ", head_dim " << head_dim << ", " << n_keys << " keys, cut after " << n_first);
          CHECK(same_bits(attend(*table, in.query, in.keys, in.values, stride, n_first), expected));
        }
      }
    }
  }
}

TEST_CASE("heads that are computed together have each its own bits") {
  for (const std::int64_t n_heads : {2, 3, 12}) {
    for (const std::int64_t head_dim : {33, 64, 150}) {
      const std::int64_t n_keys = 53;
      const std::int64_t cut = 19;
      Generator random(static_cast<std::uint64_t>(n_heads * 1000 + head_dim));
      KALIBRI_SEED(random);
      const Inputs in(random, head_dim, n_keys, head_dim);
      const Guarded<float> queries(uniform_vector(random, n_heads * head_dim), 1);
      const KeyRun runs[] = {{in.keys.data(), in.values.data(), cut},
                             {in.keys.data() + cut * head_dim, in.values.data() + cut * head_dim, n_keys - cut}};
      std::vector<float> expected;
      for (std::int64_t h = 0; h < n_heads; ++h) {
        const std::vector<float> query(queries.data() + h * head_dim, queries.data() + (h + 1) * head_dim);
        const std::vector<float> alone = attend(scalar(), query, in.keys, in.values, head_dim, n_keys);
        expected.insert(expected.end(), alone.begin(), alone.end());
      }
      std::vector<const KernelTable*> tables = tables_under_test();
      tables.push_back(&scalar());
      for (const KernelTable* table : tables) {
        INFO(table->isa << ", " << n_heads << " heads, head_dim " << head_dim);
        const Guarded<float> scores(n_heads * n_keys, 1), out(n_heads * head_dim, 1);
        table->attention({.n_heads = n_heads,
                          .queries = queries.data(),
                          .runs = runs,
                          .n_runs = 2,
                          .row_stride = head_dim,
                          .head_dim = head_dim,
                          .scale = 0.3F,
                          .scores = scores.data(),
                          .out = out.data()});
        CHECK(scores.surroundings_intact());
        CHECK(out.surroundings_intact());
        CHECK(same_bits(out.values(), expected));
      }
    }
  }
}

TEST_CASE("attention over many short runs has the bits of one run with the same keys") {
  Generator random(3);
  KALIBRI_SEED(random);
  const Inputs in(random, 64, 131, 64);
  const std::vector<float> expected = attend(scalar(), in.query, in.keys, in.values, 64, 131);
  std::vector<KeyRun> runs;
  for (std::int64_t first = 0; first < 131; first += 4) {
    runs.push_back(
        {in.keys.data() + first * 64, in.values.data() + first * 64, std::min<std::int64_t>(4, 131 - first)});
  }
  std::vector<float> scores(131);
  std::vector<float> out(64);
  std::vector<const KernelTable*> tables = tables_under_test();
  tables.push_back(&scalar());
  for (const KernelTable* table : tables) {
    INFO(table->isa);
    table->attention({.queries = in.query.data(),
                      .runs = runs.data(),
                      .n_runs = static_cast<std::int64_t>(runs.size()),
                      .row_stride = 64,
                      .head_dim = 64,
                      .scale = 0.3F,
                      .scores = scores.data(),
                      .out = out.data()});
    CHECK(same_bits(out, expected));
  }
}

TEST_CASE("attention has the scalar bits where exponentials vanish and where scores are equal") {
  Generator random(1);
  KALIBRI_SEED(random);
  Inputs in(random, 64, 70, 64);
  for (float& value : in.query) value *= 300;  // scores spread over more than exp's whole range
  const std::vector<float> zero_keys(in.keys.size(), 0.0F);
  for (const KernelTable* table : tables_under_test()) {
    INFO(table->isa);
    CHECK(same_bits(attend(*table, in.query, in.keys, in.values, 64, 70),
                    attend(scalar(), in.query, in.keys, in.values, 64, 70)));
    CHECK(same_bits(attend(*table, in.query, zero_keys, in.values, 64, 70),
                    attend(scalar(), in.query, zero_keys, in.values, 64, 70)));
  }
}

TEST_CASE("the comparison of attention sees a key too few and two keys exchanged") {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    Generator random(seed);
    KALIBRI_SEED(random);
    const Inputs in(random, 64, 40, 64);
    const std::vector<float> right = attend(scalar(), in.query, in.keys, in.values, 64, 40);
    Inputs fewer = in;
    fewer.keys.erase(fewer.keys.begin(), fewer.keys.begin() + 64);
    fewer.values.erase(fewer.values.begin(), fewer.values.begin() + 64);
    CHECK(!same_bits(attend(scalar(), fewer.query, fewer.keys, fewer.values, 64, 39), right));
    Inputs exchanged = in;
    std::swap_ranges(exchanged.keys.begin(), exchanged.keys.begin() + 64, exchanged.keys.begin() + 640);
    std::swap_ranges(exchanged.values.begin(), exchanged.values.begin() + 64, exchanged.values.begin() + 640);
    CHECK(!same_bits(attend(scalar(), exchanged.query, exchanged.keys, exchanged.values, 64, 40), right));
  }
}

}  // namespace
}  // namespace kalibri::kernels
