// Precision texts, expansions, and loops over rows on several threads.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/kernels/codec.hpp"
#include "engine/runtime/expanded_experts.hpp"
#include "engine/runtime/kv_cache.hpp"
#include "engine/runtime/linear.hpp"
#include "engine/runtime/precision.hpp"
#include "engine/runtime/resident_experts.hpp"
#include "engine/runtime/weight_forms.hpp"
#include "fixtures/catch.hpp"

using namespace kalibri;
using kernels::Format;
using kernels::MatrixView;
using runtime::Precision;

namespace {

/// FP8 [130, 132]: partial blocks on both edges, four scales far apart.
struct SmallFp8 {
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(130 * 132);
  std::vector<float> scales = {1.0F, 3.0F, 100.0F, 0.01F};
  SmallFp8() {
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 7 % 127);  // no NaN code
  }
  [[nodiscard]] MatrixView view() const { return {Format::e4m3_block, 130, 132, codes.data(), scales.data()}; }
};

bool begins_a_line(const float* data) { return reinterpret_cast<std::uintptr_t>(data) % 64 == 0; }

}  // namespace

TEST_CASE("What products and attention load from begins a cache line, so that no vector lies across two") {
  constexpr std::int64_t kRow = 4096;
  constexpr std::int64_t kMany = 1 << 20;  // malloc's own blocks of this size begin 16 bytes behind a page
  ThreadPool pool(2);
  runtime::Workers workers(pool);
  CHECK(begins_a_line(workers.shared_scratch(kMany)));
  for (const int worker : {0, 1}) CHECK(begins_a_line(workers.scratch(worker, kMany)));

  runtime::KvCache cache(200, 1000, kRow);
  runtime::KvStaging staging;
  const std::vector<float> rows(300 * kRow);
  for (const std::int64_t n : {150, 300}) {  // straight into the slots, then staged
    cache.append(rows.data(), rows.data(), n, staging);
    const runtime::VisibleRows visible = cache.visible(cache.position() - n);
    CHECK(begins_a_line(visible.runs[0].keys));
    CHECK(begins_a_line(visible.runs[0].values));
  }
}

TEST_CASE("A precision's text names it again, and an unknown one is refused with what is known") {
  for (const char* text :
       {"exact", "native", "mixed-4-8", "dense=bf16", "experts=affine:4:32:gpu,head=f32",
        "dense=affine:8:128,experts=affine:2:64,embed=bf16", "bf16", "production", "compute=bf16-served",
        "compute=bf16,residual=bf16-fused,dense=f32,activations=int16,kv=bf16", "activations=int8",
        "residual=bf16,experts=bf16,activations=fp8-dynamic"}) {
    REQUIRE(Precision::parse(text).text() == text);
    REQUIRE(Precision::parse(Precision::parse(text).text()) == Precision::parse(text));
  }
  // Many texts of one value have one canonical text.
  REQUIRE(Precision::parse("head=affine:8:64,dense=affine:8:64,experts=affine:4:64,embed=affine:8:64").text() ==
          "mixed-4-8");
  REQUIRE(Precision::parse("experts=bf16,dense=native").text() == "experts=bf16");
  REQUIRE(Precision::parse("embed=native").text() == "native");
  REQUIRE(Precision::parse("kv=bf16,dense=f32,residual=f32,router=f32").text() == "dense=f32,kv=bf16");
  REQUIRE(Precision::parse("activations=fp8-dynamic,kv=bf16,residual=bf16-fused,compute=bf16-served").text() ==
          "production");
  REQUIRE(Precision::parse("head=f32,embed=f32,dense=f32,experts=f32") == Precision::parse("exact"));
  for (const char* text : {"fast",
                           "",
                           "dense",
                           "dense=",
                           "dense=affine",
                           "dense=affine:7:64",
                           "dense=affine:4:48",
                           "dense=affine:4:64:cpu",
                           "dense=affine:4:64:gpu:gpu",
                           "dense=bf16,dense=bf16",
                           "dense=bf16,",
                           "router=bf16",
                           "compute=fp16",
                           "residual=bf16-served",
                           "activations=bf16",
                           "kv=fp8",
                           "compute=bf16,compute=bf16",
                           "router=",
                           "exact,dense=bf16",
                           "dense=affine:+4:64",
                           "Dense=bf16"}) {
    INFO(text);
    REQUIRE_THROWS_WITH(Precision::parse(text), Catch::Matchers::ContainsSubstring("'" + std::string(text) + "'") &&
                                                    Catch::Matchers::ContainsSubstring("affine:BITS:GROUP[:gpu]"));
  }
}

TEST_CASE(
    "A matrix takes its class's form, affine where groups divide its rows, bf16 where not, and never of no class") {
  const std::vector<float> divisible(3 * 64, 0.1F);
  const MatrixView wide{Format::f32, 3, 64, divisible.data()};
  const std::vector<float> narrow_values(3 * 48, 0.1F);
  const MatrixView narrow{Format::f32, 3, 48, narrow_values.data()};
  const SmallFp8 fp8;
  runtime::WeightForms forms(Precision::parse("dense=affine:3:64,head=bf16"));
  forms.classify(wide.data, checkpoint::WeightClass::dense);
  forms.classify(narrow.data, checkpoint::WeightClass::dense);
  const MatrixView made = forms.use(0, wide);
  REQUIRE(made.format == Format::affine);
  REQUIRE((made.bits == 3 && made.group_size == 64 && made.grid_format == Format::bf16));
  std::vector<float> row(64), looked_up(64);
  kernels::decode_row(made, 2, row.data());
  forms.decode_row(wide, 2, looked_up.data());
  REQUIRE(row == looked_up);
  REQUIRE(forms.use(0, narrow).format == Format::bf16);
  REQUIRE(forms.use(0, fp8.view()).format == Format::bf16);  // no class: what the converter makes of FP8

  const std::vector<float> router(3 * 64, 0.1F);
  const MatrixView unnamed{Format::f32, 3, 64, router.data()};
  REQUIRE(forms.use(0, unnamed).data == router.data());
}

TEST_CASE("A row of an FP8 embedding is looked up in its form with the scale of its own block") {
  const SmallFp8 stored;
  runtime::WeightForms forms(Precision::parse("embed=bf16"));
  forms.classify(stored.view().data, checkpoint::WeightClass::embed);
  const MatrixView whole = forms.use(runtime::kNoLayer, stored.view());
  std::vector<float> expected(132), row(132);
  for (const std::int64_t r : {0, 127, 128, 129}) {
    kernels::decode_row(whole, r, expected.data());
    forms.decode_row(stored.view(), r, row.data());
    REQUIRE(row == expected);
  }
}

TEST_CASE("A NaN cannot become bf16 or affine") {
  std::vector<float> values(64, 1.0F);
  values[40] = std::nanf("");
  const MatrixView stored{Format::f32, 1, 64, values.data()};
  for (const char* text : {"dense=bf16", "dense=affine:4:32"}) {
    runtime::WeightForms forms(Precision::parse(text));
    forms.classify(values.data(), checkpoint::WeightClass::dense);
    REQUIRE_THROWS_AS(forms.use(0, stored), Error);
  }
}

TEST_CASE("An expansion is made once, holds each row as decoded, and goes with its layer") {
  const SmallFp8 stored;
  runtime::WeightForms forms(Precision::parse("exact"));
  const MatrixView expanded = forms.use(3, stored.view());
  REQUIRE(expanded.format == Format::f32);
  REQUIRE(forms.use(3, stored.view()).data == expanded.data);
  std::vector<float> row(132);
  for (const std::int64_t r : {0, 127, 128, 129}) {
    kernels::decode_row(stored.view(), r, row.data());
    REQUIRE(std::memcmp(row.data(), static_cast<const float*>(expanded.data) + r * 132, 132 * sizeof(float)) == 0);
  }
  forms.leave_layer(3);
  REQUIRE(forms.use(4, stored.view()).format == Format::f32);
}

TEST_CASE("The stored matrix is let go once, when its other form has been made, and not when it has none") {
  const SmallFp8 stored;
  const std::vector<float> plain(3 * 64, 0.1F);
  std::vector<const void*> forgotten;
  runtime::WeightForms forms(Precision::parse("exact"),
                             [&](const MatrixView& matrix) { forgotten.push_back(matrix.data); });
  for (int i = 0; i < 2; ++i) {
    forms.use(0, stored.view());
    forms.use(0, {Format::f32, 3, 64, plain.data()});
  }
  REQUIRE(forgotten == std::vector<const void*>{stored.codes.data()});
}

TEST_CASE("Native weights are used where they lie") {
  const SmallFp8 stored;
  runtime::WeightForms forms(Precision::parse("native"));
  REQUIRE(forms.use(0, stored.view()).data == stored.codes.data());
}

TEST_CASE("A partial edge block has its own scale") {
  // Code 0x38 is 1.0. Row 128 and column 128 are the first of the partial blocks.
  SmallFp8 stored;
  std::fill(stored.codes.begin(), stored.codes.end(), std::uint8_t{0x38});
  std::vector<float> row(132);
  kernels::decode_row(stored.view(), 127, row.data());
  REQUIRE(row[127] == 1.0F);
  REQUIRE(row[128] == 3.0F);
  kernels::decode_row(stored.view(), 128, row.data());
  REQUIRE(row[127] == 100.0F);
  REQUIRE(row[128] == 0.01F);
}

TEST_CASE("A linear layer gives the same bits on one and on two threads, and both threads work") {
  const SmallFp8 stored;
  std::vector<float> x(9 * 132);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  std::vector<float> one(9 * 130);
  std::vector<float> two(9 * 130);
  ThreadPool single(1);
  ThreadPool pair(2);
  runtime::Workers one_worker(single);
  runtime::Workers two_workers(pair);
  runtime::linear(one_worker, stored.view(), x.data(), 9, one.data());
  const auto has_idle = [&] { return std::ranges::count(pair.tasks_run(), 0) > 0; };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);  // a busy machine wakes a thread late
  for (int i = 0; i < 200 || (has_idle() && std::chrono::steady_clock::now() < end); ++i) {
    runtime::linear(two_workers, stored.view(), x.data(), 9, two.data());
    REQUIRE(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)) == 0);
  }
  for (const std::int64_t n : pair.tasks_run()) REQUIRE(n > 0);
}

TEST_CASE("Expanded experts in use are kept, idle ones go beyond the limit, the longest idle first") {
  const SmallFp8 stored;
  const runtime::ExpertWeights weights{stored.view(), stored.view(), stored.view()};
  constexpr std::int64_t kBytes = 3 * 130 * 132 * 4;  // of one expert
  runtime::ExpandedExperts experts(2 * kBytes);
  const auto values = [](const runtime::ExpertWeights& expert) { return static_cast<const float*>(expert.down.data); };
  std::vector<float> last_row(132);
  kernels::decode_row(stored.view(), 129, last_row.data());
  for (std::int64_t expert = 0; expert < 3; ++expert) {
    const runtime::ExpertWeights expanded = experts.acquire(0, expert, weights);
    REQUIRE(expanded.up.format == Format::f32);
    REQUIRE(std::memcmp(values(expanded) + 129 * 132, last_row.data(), 132 * sizeof(float)) == 0);
  }
  CHECK(experts.n_bytes() == 3 * kBytes);  // all three are in use
  const float* second = values(experts.acquire(0, 1, weights));
  experts.release(0, 1);
  experts.release(0, 2);
  CHECK(experts.n_bytes() == 2 * kBytes);  // the third was idle, the second has another user
  experts.release(0, 1);
  experts.release(0, 0);
  CHECK(experts.n_bytes() == 2 * kBytes);
  CHECK(values(experts.acquire(0, 1, weights)) == second);  // not expanded again
  experts.release(0, 1);
  experts.acquire(1, 0, weights);
  CHECK(experts.n_bytes() == 2 * kBytes);  // the first went: the second was used after it
  CHECK(values(experts.acquire(0, 1, weights)) == second);
  experts.release(0, 1);
  experts.leave_layer(0);
  CHECK(experts.n_bytes() == kBytes);
  experts.release(1, 0);
  const std::vector<float> in_place(130 * 132);
  const MatrixView f32{Format::f32, 130, 132, in_place.data(), nullptr};
  CHECK(experts.acquire(2, 0, {f32, f32, f32}).gate.data == in_place.data());
  experts.release(2, 0);
  CHECK(experts.n_bytes() == kBytes);
}

TEST_CASE("Of experts used where they lie, the longest idle are let go beyond the limit, and none in use") {
  std::vector<SmallFp8> stored(3);
  std::vector<runtime::ExpertWeights> experts;
  for (const SmallFp8& matrix : stored) experts.push_back({matrix.view(), matrix.view(), matrix.view()});
  runtime::WeightForms forms(Precision::parse("native"));
  std::vector<const void*> gone;
  constexpr std::int64_t kBytes = 3 * 130 * 132;  // of one expert
  runtime::ResidentExperts store(
      {experts}, forms, [](std::int64_t, std::int64_t) {},
      [&](const runtime::ExpertWeights& expert) { gone.push_back(expert.gate.data); }, 2 * kBytes);
  for (std::int64_t expert = 0; expert < 3; ++expert) store.acquire(0, expert);
  CHECK(gone.empty());  // all three are in use
  store.release(0, 1);
  CHECK(gone == std::vector<const void*>{stored[1].codes.data()});
  store.release(0, 2);
  store.release(0, 0);
  CHECK(gone.size() == 1);  // two are within the limit
  store.acquire(0, 2);
  store.release(0, 2);
  store.acquire(0, 1);
  CHECK(gone == std::vector<const void*>{stored[1].codes.data(), stored[0].codes.data()});
  store.release(0, 1);
  gone.clear();
  store.leave_layer(0);
  CHECK(gone.size() == 3);  // the layer's, whether they were used or not
}

TEST_CASE("An expert's codes are checked once, before its first use") {
  const SmallFp8 stored;
  runtime::WeightForms forms(Precision::parse("native"));
  int n_checks = 0;
  const runtime::ExpertWeights weights{stored.view(), stored.view(), stored.view()};
  runtime::ResidentExperts store(
      {{weights, weights}}, forms,
      [&](std::int64_t, std::int64_t expert) {
        ++n_checks;
        if (expert == 1) throw Error(ErrorCode::tensor, "a NaN code");
      },
      [](const runtime::ExpertWeights&) {});
  REQUIRE(n_checks == 0);
  store.acquire(0, 0);
  store.acquire(0, 0);
  REQUIRE(n_checks == 1);
  REQUIRE_THROWS_AS(store.acquire(0, 1), Error);
  REQUIRE_THROWS_AS(store.acquire(0, 1), Error);  // and stays refused
}
