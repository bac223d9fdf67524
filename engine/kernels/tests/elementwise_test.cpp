// dot, norms, rotation and activations: every table against the scalar definition, on bits.
#include <functional>

#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

using namespace test;

constexpr std::int64_t kLengths[] = {0,  1,  2,  3,  4,  5,  7,  8,   9,   15,  16,
                                     17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 2560};

using Values = std::vector<float>;

/// Runs `kernel` on copies of its inputs, as scalar and as each table, and compares what it leaves in the first of
/// them.
void check_in_place(const std::vector<Values>& inputs,
                    const std::function<void(const KernelTable&, const std::vector<float*>&)>& kernel) {
  const auto run = [&](const KernelTable& table, std::int64_t gap) {
    std::vector<std::unique_ptr<Guarded<float>>> memory;
    std::vector<float*> pointers;
    for (const Values& values : inputs) {
      memory.push_back(std::make_unique<Guarded<float>>(values, gap));
      pointers.push_back(memory.back()->data());
    }
    kernel(table, pointers);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      CHECK(memory[i]->surroundings_intact());
      if (i > 0) CHECK(same_bits(memory[i]->values(), inputs[i]));
    }
    return memory.front()->values();
  };
  const Values expected = run(scalar(), 0);
  for (const KernelTable* table : tables_under_test()) {
    INFO(table->isa << ", " << inputs.front().size() << " elements");
    for (const std::int64_t gap : {0, 1, 5}) CHECK(same_bits(run(*table, gap), expected));
  }
}

/// The same for `count` inputs of every length, with ordinary and with arbitrary numbers.
void check_lengths(std::size_t count,
                   const std::function<void(const KernelTable&, const std::vector<float*>&, std::int64_t)>& kernel) {
  for (const std::int64_t n : kLengths) {
    Generator random(static_cast<std::uint64_t>(n));
    KALIBRI_SEED(random);
    std::vector<Values> ordinary;
    std::vector<Values> arbitrary;
    for (std::size_t i = 0; i < count; ++i) {
      ordinary.push_back(uniform_vector(random, n));
      arbitrary.push_back(any_vector(random, n));
    }
    const auto with_length = [&](const KernelTable& table, const std::vector<float*>& in) { kernel(table, in, n); };
    check_in_place(ordinary, with_length);
    check_in_place(arbitrary, with_length);
  }
}

TEST_CASE("dot has the scalar bits") {
  check_lengths(2, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    const float result = table.dot(in[0], in[1], n);
    if (n > 0) in[0][0] = result;
  });
}

TEST_CASE("rms_norm has the scalar bits, with and without a weight") {
  check_lengths(2, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.rms_norm(in[0], in[1], 1e-6F, n, in[0]);
  });
  check_lengths(1, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.rms_norm(in[0], nullptr, 1e-6F, n, in[0]);
  });
}

TEST_CASE("rope has the scalar bits") {
  for (const std::int64_t half : kLengths) {
    Generator random(static_cast<std::uint64_t>(half));
    KALIBRI_SEED(random);
    check_in_place(
        {uniform_vector(random, 2 * half), uniform_vector(random, half), uniform_vector(random, half)},
        [half](const KernelTable& table, const std::vector<float*>& in) { table.rope(in[0], in[1], in[2], half); });
  }
}

TEST_CASE("silu_mul, sigmoid, add and axpy have the scalar bits") {
  check_lengths(2, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.silu_mul(in[0], in[1], n, in[0]);
  });
  check_lengths(1, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.sigmoid(in[0], n, in[0]);
  });
  check_lengths(
      2, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) { table.add(in[1], n, in[0]); });
  check_lengths(2, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.axpy(-0.37F, in[1], n, in[0]);
  });
}

TEST_CASE("sigmoid has the scalar bits over all exponents and around its ends, NaN included") {
  Values x;
  for (std::uint32_t pattern = 0; pattern < 0xffff0000U; pattern += 0xfff1U) x.push_back(std::bit_cast<float>(pattern));
  for (const float end : {-0x1.5d589ep6F, 0x1.62e42ep6F, 0x1.5d589ep6F, -0x1.62e42ep6F}) {
    for (std::int32_t step = -4; step <= 4; ++step) {
      x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(std::bit_cast<std::int32_t>(end) + step)));
    }
  }
  const auto n = static_cast<std::int64_t>(x.size());
  check_in_place({x}, [n](const KernelTable& table, const std::vector<float*>& in) { table.sigmoid(in[0], n, in[0]); });
}

TEST_CASE("the comparison of bits sees one bit, a sign of zero and a missing NaN") {
  const float nan = std::bit_cast<float>(0x7fc00000U);
  CHECK(!same_bits(Values{1.0F}, Values{std::nextafter(1.0F, 2.0F)}));
  CHECK(!same_bits(Values{0.0F}, Values{-0.0F}));
  CHECK(!same_bits(Values{nan}, Values{1.0F}));
  CHECK(!same_bits(Values{1.0F}, Values{1.0F, 1.0F}));
  CHECK(same_bits(Values{nan}, Values{-nan}));
}

TEST_CASE("silu, scale, multiply and multiply_add have the scalar bits") {
  check_lengths(
      1, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) { table.silu(in[0], n, in[0]); });
  check_lengths(1, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.scale(0.7F, in[0], n, in[0]);
  });
  check_lengths(2, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.multiply(in[1], n, in[0]);
  });
  check_lengths(3, [](const KernelTable& table, const std::vector<float*>& in, std::int64_t n) {
    table.multiply_add(in[1], in[2], n, in[0]);
  });
}

TEST_CASE("conv and conv_silu have the scalar bits for any number of taps") {
  for (const std::int64_t n_taps : {1, 2, 4, 16}) {
    for (const std::int64_t n : kLengths) {
      Generator random(static_cast<std::uint64_t>(100 * n + n_taps));
      KALIBRI_SEED(random);
      std::vector<Values> inputs(1, Values(static_cast<std::size_t>(n), 1.0F));
      inputs.push_back(uniform_vector(random, n_taps * n));
      for (std::int64_t j = 0; j < n_taps; ++j) inputs.push_back(uniform_vector(random, n));
      check_in_place(inputs, [=](const KernelTable& table, const std::vector<float*>& in) {
        const std::vector<const float*> rows(in.begin() + 2, in.end());
        table.conv(rows.data(), in[1], n_taps, n, in[0]);
      });
      check_in_place(inputs, [=](const KernelTable& table, const std::vector<float*>& in) {
        const std::vector<const float*> rows(in.begin() + 2, in.end());
        table.conv_silu(rows.data(), in[1], n_taps, n, in[0]);
      });
    }
  }
}

TEST_CASE("A convolution worked out by hand: taps rise, the last one meets the newest row") {
  const float rows[3][2] = {{1, 10}, {2, 20}, {3, 30}};
  const float* pointers[] = {rows[0], rows[1], rows[2]};
  const float weights[] = {100, 0, 10, 0, 1, 2};  // [3 taps, 2 channels]
  float y[2];
  scalar().conv(pointers, weights, 3, 2, y);
  CHECK(y[0] == 123.0F);
  CHECK(y[1] == 60.0F);
}

}  // namespace
}  // namespace kalibri::kernels
