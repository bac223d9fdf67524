// The delta rule: a case by hand, every table against the scalar definition on bits, and time in any cuts.
#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

using namespace test;

struct Problem {
  Problem(std::int64_t tokens, std::int64_t key_size, std::int64_t columns)
      : n_tokens(tokens),
        dk(key_size),
        n_columns(columns),
        random(static_cast<std::uint64_t>(tokens * 1000 + columns)) {
    q = uniform_vector(random, tokens * dk);
    k = uniform_vector(random, tokens * dk);
    v = uniform_vector(random, tokens * dk + columns);
    state = uniform_vector(random, dk * columns);
    for (std::int64_t t = 0; t < tokens; ++t) {
      alpha.push_back(0.5F + 0.5F * std::fabs(random.uniform()));
      beta.push_back(std::fabs(random.uniform()));
    }
  }
  std::int64_t n_tokens, dk, n_columns;
  Generator random;
  std::vector<float> q, k, v, state, alpha, beta;
};

struct Outcome {
  std::vector<float> out;
  std::vector<float> state;
};

/// All tokens in calls of `cut` tokens; v's rows lie dk apart, like q's and k's.
Outcome run(const KernelTable& table, const Problem& p, std::int64_t cut) {
  const Guarded<float> state(p.state, 1), out(p.n_tokens * p.n_columns, 1);
  for (std::int64_t t = 0; t < p.n_tokens; t += cut) {
    table.delta_rule({.n_tokens = std::min(cut, p.n_tokens - t),
                      .dk = p.dk,
                      .n_columns = p.n_columns,
                      .q = p.q.data() + t * p.dk,
                      .k = p.k.data() + t * p.dk,
                      .v = p.v.data() + t * p.dk,
                      .qkv_stride = p.dk,
                      .alpha = p.alpha.data() + t,
                      .beta = p.beta.data() + t,
                      .gate_stride = 1,
                      .state = state.data(),
                      .state_stride = p.n_columns,
                      .out = out.data() + t * p.n_columns,
                      .out_stride = p.n_columns});
  }
  CHECK(state.surroundings_intact());
  CHECK(out.surroundings_intact());
  return {out.values(), state.values()};
}

TEST_CASE("the delta rule by hand: decay, read, correct, write, then the output") {
  Problem p(1, 2, 1);
  p.q = {1, 2};
  p.k = {3, 4};
  p.v = {10, 0, 0};
  p.state = {2, 4};
  p.alpha = {0.5F};
  p.beta = {0.25F};
  // Decayed state 1, 2; memory 3*1 + 4*2 = 11; correction 0.25 * (10 - 11) = -0.25; state 1 - 0.75, 2 - 1; output 0.25
  // + 2.
  const Outcome outcome = run(scalar(), p, 1);
  CHECK(outcome.state == std::vector<float>{0.25F, 1.0F});
  CHECK(outcome.out == std::vector<float>{2.25F});
}

TEST_CASE("the delta rule has the scalar bits for any number of columns, and in any cuts of time") {
  for (const std::int64_t n_columns : {1, 3, 8, 15, 16, 17, 31, 32, 48, 64, 100}) {
    const Problem p(13, 12, n_columns);
    const Outcome expected = run(scalar(), p, 13);
    for (const KernelTable* table : tables_under_test()) {
      for (const std::int64_t cut : {13, 1, 5}) {
        INFO(table->isa << ", " << n_columns << " columns, cut " << cut);
        const Outcome outcome = run(*table, p, cut);
        CHECK(same_bits(outcome.out, expected.out));
        CHECK(same_bits(outcome.state, expected.state));
      }
    }
  }
}

TEST_CASE("the comparison of the delta rule sees one changed gate") {
  Problem p(5, 12, 16);
  const Outcome right = run(scalar(), p, 5);
  p.beta[3] *= 1.0F + 0x1p-22F;
  CHECK(!same_bits(run(scalar(), p, 5).out, right.out));
}

}  // namespace
}  // namespace kalibri::kernels
