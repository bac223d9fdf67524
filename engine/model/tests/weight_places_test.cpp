// Weights in memory of their own: the same bits as mapped ones in every precision, read once and really there, and
// which place is chosen automatically.
#include "engine/model/weight_places.hpp"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using runtime::WeightPlace;
using runtime::WeightPlaceOptions;
using test::LoadedModel;

namespace {

constexpr WeightPlaceOptions kMemory = {WeightPlace::memory, 2, 0};

std::vector<float> logits(const model::Model& model) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 30; ++i) ids.push_back(i * i * 7 % 150);
  ThreadPool pool(2);
  return test::run_in_cuts(model, pool, ids, {17, 1}, 8);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("Weights in memory give the bits of mapped ones in every precision, and the files are mapped again after") {
  for (const char* set : {"kolibri1-k1-fp8", "mlx-affine/kolibri1-k1-mlx-mixed", "qwen4-exp-t1-fp8", "qwen4-exp-t2"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    for (const char* precision : test::kPrecisions) {
      INFO(set << ", " << precision);
      const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(*directory);
      const auto parsed = runtime::Precision::parse(precision);
      const std::vector<float> expected = logits(model::Model(checkpoint, parsed));
      {
        const model::Model in_memory(checkpoint, parsed, {}, kMemory);
        CHECK(in_memory.weight_place().is_memory);
        CHECK(in_memory.weight_place().read_bytes > 0);
        CHECK_FALSE(in_memory.expert_cache().has_value());
        CHECK(same_bits(expected, logits(in_memory)));
        CHECK(same_bits(expected, logits(in_memory)));
        for (std::int64_t l = 0; l < in_memory.info().n_layers; ++l) in_memory.leave_layer(l);
        CHECK(same_bits(expected, logits(in_memory)));
      }
      CHECK(same_bits(expected, logits(model::Model(checkpoint, parsed))));
    }
  }
}

TEST_CASE("A cache of experts goes with other weights in memory") {
  const auto directory = fixtures::find_golden("kolibri1-k1-fp8");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const LoadedModel loaded(*directory, "native", {.n_slots = 2}, kMemory);
  CHECK(loaded.model.weight_place().read_bytes > 0);
  CHECK(loaded.model.expert_cache()->n_slots == 2);
  CHECK(same_bits(logits(LoadedModel(*directory, "native").model), logits(loaded.model)));
}

TEST_CASE("What is in memory stays as it was read when the file changes, what is mapped does not") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "lm_head.weight",
                           "model.layers.1.mlp.shared_experts.down_proj.weight"}) {
    const fixtures::CheckpointCopy copy(*directory);
    const LoadedModel mapped(copy.directory(), "native");
    const LoadedModel memory(copy.directory(), "native", {}, kMemory);
    const std::vector<float> expected = logits(mapped.model);
    CHECK(same_bits(expected, logits(memory.model)));
    copy.edit_byte(name, 3, [](unsigned char byte) { return static_cast<unsigned char>(byte ^ 0x81); });
    INFO(name);
    CHECK(same_bits(expected, logits(memory.model)));
    CHECK_FALSE(same_bits(expected, logits(mapped.model)));
  }
}

TEST_CASE("A NaN code among weights in memory is refused by its tensor's name") {
  const auto directory = fixtures::find_golden("kolibri1-k1-fp8");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  for (const char* name : {"model.layers.1.self_attn.o_proj.weight", "model.layers.2.mlp.experts.7.up_proj.weight"}) {
    const fixtures::CheckpointCopy copy(*directory);
    copy.edit_byte(name, 5, [](unsigned char) { return static_cast<unsigned char>(0xff); });
    const auto run = [&] {
      const LoadedModel loaded(copy.directory(), "native", {}, kMemory);
      ThreadPool pool(1);
      std::vector<std::int32_t> ids;
      for (std::int32_t i = 0; i < 150; ++i) ids.push_back(i);  // takes every expert
      test::run_in_cuts(loaded.model, pool, ids, {150}, 512);
    };
    CHECK_THROWS_WITH(run(), Catch::Matchers::ContainsSubstring(name));
  }
}

TEST_CASE("Automatically weights stay mapped when a run does not fit, and when they are too few to gain anything") {
  const auto directory = fixtures::find_golden("kolibri1-k1");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1 is not there");
  const auto place = [&](std::int64_t available_bytes) {
    return LoadedModel(*directory, "native", {}, {WeightPlace::automatic, 1, available_bytes}).model.weight_place();
  };
  const runtime::WeightPlaceInfo tight = place(1 << 20);
  CHECK_FALSE(tight.is_memory);
  CHECK(tight.needed_bytes > 64 << 20);
  CHECK(tight.available_bytes == 1 << 20);
  const runtime::WeightPlaceInfo small = place(tight.needed_bytes);
  CHECK_FALSE(small.is_memory);
  CHECK(small.gain == 0);
  CHECK(place(0).available_bytes > 0);  // what the system says
}

namespace {

/// Whether a process that gets no more memory of its own from the system, but what it has on its heap, may say so.
template <typename Function>
bool holds_without_memory(const Function& function) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool holds = false;
    try {
      ::mallopt(M_MMAP_MAX, 0);
      ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
      void* volatile heap = std::malloc(std::size_t{64} << 20);  // which keeps it
      std::free(heap);
      const rlimit none = {1, 1};
      holds = ::setrlimit(RLIMIT_DATA, &none) == 0 && function();
    } catch (...) {  // the parent sees that it does not hold
    }
    ::_exit(holds ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE(
    "Where a process gets no memory automatic weights stay mapped and say why, and those in memory are an error") {
  const fixtures::TempDirectory directory;
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_wide();
  shape.n_experts = 8;
  shape.vocab_size = 2048;  // enough for the sample that is measured with
  fixtures::Kolibri1Options options;
  options.sparse = true;
  fixtures::make_kolibri1(directory.path() / "wide", shape, options);
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(directory.path() / "wide");
  const auto load = [&](WeightPlace place) {
    const WeightPlaceOptions asked = {place, 1, std::int64_t{1} << 40};
    return model::Model(checkpoint, runtime::Precision::parse("native"), {}, asked).weight_place();
  };
  CHECK(load(WeightPlace::automatic).refusal.empty());
  CHECK(load(WeightPlace::automatic).gain > 0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  KALIBRI_SKIP("sanitizers end a process that gets no memory");
#endif
  CHECK(holds_without_memory([&] {
    const runtime::WeightPlaceInfo info = load(WeightPlace::automatic);
    return !info.is_memory && info.read_bytes == 0 && info.refusal.find("does not give") != std::string::npos;
  }));
  CHECK(holds_without_memory([&] {
    try {
      load(WeightPlace::memory);
    } catch (const Error& error) {
      return error.code() == ErrorCode::usage;
    }
    return false;
  }));
}

TEST_CASE("A run needs its whole experts or its cache of them, and room for its session") {
  const auto directory = fixtures::find_golden("kolibri1-k1-fp8");
  if (!directory) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(*directory);
  const auto native = runtime::Precision::parse("native");
  const auto needed = [&](const runtime::ExpertCacheOptions& cache) {
    return model::needed_bytes(checkpoint, native, cache, 1);
  };
  const model::Model model(checkpoint, native, {.n_slots = 1});
  const runtime::ExpertCacheInfo info = *model.expert_cache();
  const std::int64_t row = info.n_layers * info.slot_bytes;
  CHECK(std::abs(needed({.n_slots = 3}) - needed({.n_slots = 2}) - row * 11 / 10) <= 20);
  CHECK(needed({.n_bytes = 3 * row}) == needed({.n_slots = 3}));
  CHECK(needed({}) == needed({.n_slots = info.n_experts}));
  CHECK(needed({.n_slots = 10 * info.n_experts}) == needed({}));
  CHECK(needed({.n_slots = std::numeric_limits<std::int64_t>::max()}) == needed({}));
}
