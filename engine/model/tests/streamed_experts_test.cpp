// Experts read from disk when they are wanted: the same bits as with all of them mapped, whatever is kept, however it
// is read, by however many threads; what is counted; and what goes wrong with files, without anybody waiting for ever.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/model/kolibri1_weights.hpp"
#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/checkpoint_copy.hpp"
#include "fixtures/golden.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/safetensors_reader.hpp"
#include "fixtures/temp_directory.hpp"

namespace {

std::atomic<bool> direct_reads_fail = false;  // as where a file system opens a file so, but wants larger blocks

struct FailingDirectReads {
  FailingDirectReads() { direct_reads_fail = true; }
  ~FailingDirectReads() { direct_reads_fail = false; }
};

}  // namespace

/// In the place of the C library's.
extern "C" ssize_t pread(int descriptor, void* to, std::size_t n_bytes, off_t offset) {
  if (direct_reads_fail && (::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0) {
    errno = EINVAL;
    return -1;
  }
  return ::syscall(SYS_pread64, descriptor, to, n_bytes, offset);
}

using namespace kalibri;
using runtime::ExpertCacheOptions;
using runtime::ReadMode;
using test::KeepingSink;
using test::LoadedModel;
using test::run_in_cuts;

namespace {

constexpr const char* kKolibri = "kolibri1-k1-fp8";
constexpr ReadEngine kEngines[] = {ReadEngine::automatic, ReadEngine::threads, ReadEngine::blocking};

std::vector<std::int32_t> golden_ids(const std::filesystem::path& set) {
  const std::vector<std::int64_t> ids =
      fixtures::read_safetensors(set / "golden.safetensors").at("input_ids").integers();
  return {ids.begin(), ids.end()};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Kolibri's weights with a cache, for tests that visit the experts themselves.
struct Store {
  explicit Store(const std::filesystem::path& directory, const ExpertCacheOptions& cache)
      : checkpoint(checkpoint::Checkpoint::open(directory)),
        weights(checkpoint, runtime::Precision::parse("native"), cache) {}
  [[nodiscard]] runtime::ExpertStore& experts() const { return weights.experts(); }
  checkpoint::Checkpoint checkpoint;
  model::Kolibri1Weights weights;
};

/// Takes all experts of a visit and gives them back; returns their indices.
std::vector<std::size_t> use_all(runtime::ExpertVisit& visit, std::size_t n) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < n; ++i) order.push_back(runtime::TakenExpert(visit).index());
  return order;
}

}  // namespace

TEST_CASE("Any number of kept experts, any way of reading them and any threads give the bits of mapped ones") {
  for (const char* set : {kKolibri, "mlx-affine/kolibri1-k1-mlx-mixed", "kolibri1-k1", "qwen4-exp-t1-fp8"}) {
    const auto directory = fixtures::find_golden(set);
    if (!directory.has_value()) KALIBRI_SKIP(std::string("golden set ") + set + " is not there");
    const std::vector<std::int32_t> ids = golden_ids(*directory);
    const auto all = static_cast<std::int64_t>(ids.size());
    ThreadPool one(1);
    ThreadPool two(2);
    const LoadedModel mapped(*directory, "native");
    const std::vector<float> expected = run_in_cuts(mapped.model, one, ids, {all}, 512);
    const model::ModelInfo& info = mapped.model.info();
    CHECK_FALSE(mapped.model.expert_cache().has_value());
    for (const std::int64_t n_slots : {std::int64_t{1}, info.top_k - 1, info.top_k, info.n_experts}) {
      for (const ReadMode mode : {ReadMode::buffered, ReadMode::direct}) {
        for (const ReadEngine engine : kEngines) {
          INFO(set << ", " << n_slots << " slots, mode " << static_cast<int>(mode) << ", engine "
                   << static_cast<int>(engine));
          const LoadedModel loaded(*directory, "native", {.n_slots = n_slots, .mode = mode, .engine = engine});
          CHECK(same_bits(expected, run_in_cuts(loaded.model, two, ids, {all}, 512)));  // cold
          CHECK(loaded.model.expert_statistics().n_misses > 0);
          CHECK(same_bits(expected, run_in_cuts(loaded.model, two, ids, {all}, 512)));  // warm
          CHECK(same_bits(expected, run_in_cuts(loaded.model, one, ids, {all - 4, 1}, 5)));
          CHECK(same_bits(expected, run_in_cuts(loaded.model, two, ids, {1}, 512)));
        }
      }
    }
  }
}

TEST_CASE("More slots never read more, all slots read each expert once, and every expert wanted is a hit or a miss") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const std::vector<std::int32_t> ids = golden_ids(*directory);
  const auto all = static_cast<std::int64_t>(ids.size());
  ThreadPool pool(1);
  KeepingSink sink;
  const LoadedModel mapped(*directory, "native");
  run_in_cuts(mapped.model, pool, ids, {all}, 512, &sink);
  const model::ModelInfo& info = mapped.model.info();
  std::int64_t n_used = 0;
  for (int layer = 0; layer < info.n_layers; ++layer) {
    const std::vector<double>& experts = sink.get(layer, "expert_ids");
    n_used += static_cast<std::int64_t>(std::set<double>(experts.begin(), experts.end()).size());
  }
  std::int64_t bytes_before = INT64_MAX;
  for (const std::int64_t n_slots : {std::int64_t{1}, info.top_k, 2 * info.top_k, info.n_experts}) {
    INFO(n_slots << " slots");
    const LoadedModel loaded(*directory, "native", {.n_slots = n_slots, .mode = ReadMode::buffered});
    run_in_cuts(loaded.model, pool, ids, {1}, 512);
    const runtime::ExpertStatistics first = loaded.model.expert_statistics();
    CHECK(first.n_hits + first.n_misses == all * info.n_layers * info.top_k);
    CHECK(first.bytes_read <= bytes_before);
    CHECK(first.read_s > 0);
    bytes_before = first.bytes_read;
    if (n_slots < info.n_experts) continue;
    CHECK(first.n_misses == n_used);
    run_in_cuts(loaded.model, pool, ids, {1}, 512);
    const runtime::ExpertStatistics second = loaded.model.expert_statistics() - first;
    CHECK(second.bytes_read == 0);
    CHECK(second.n_misses == 0);
    CHECK(second.n_hits == first.n_hits + first.n_misses);
    loaded.model.leave_layer(1);  // and a layer that was left is read again
    run_in_cuts(loaded.model, pool, ids, {1}, 512);
    CHECK((loaded.model.expert_statistics() - first).n_misses > 0);
  }
}

TEST_CASE("Who reads its experts itself waits for as long as that takes") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const Store store(*directory, {.n_slots = 2, .mode = ReadMode::buffered, .engine = ReadEngine::blocking});
  use_all(*store.experts().visit(0, {0, 1, 2, 3}), 4);
  const runtime::ExpertStatistics statistics = store.experts().statistics();
  CHECK(statistics.n_misses == 4);
  CHECK(statistics.read_s > 0);
  CHECK(statistics.wait_s > 0);
}

TEST_CASE("A cache's size in bytes becomes slots: one slot's bytes in each layer more are one slot more") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const auto cache_of = [&](const ExpertCacheOptions& options) {
    return *LoadedModel(*directory, "native", options).model.expert_cache();
  };
  const runtime::ExpertCacheInfo one = cache_of({.n_slots = 1, .mode = ReadMode::buffered});
  CHECK(one.slot_bytes % static_cast<std::int64_t>(kDirectBlock) == 0);
  CHECK(one.slot_bytes >= 3 * 8192);                     // codes
  CHECK(one.slot_bytes <= 3 * 8192 + 2 * 4 + 2 * 4096);  // and the scales between them, in whole blocks
  const std::int64_t step = one.n_layers * one.slot_bytes;
  CHECK(cache_of({.n_bytes = 3 * step - 1, .mode = ReadMode::buffered}).n_slots == 2);
  CHECK(cache_of({.n_bytes = 3 * step, .mode = ReadMode::buffered}).n_slots == 3);
  CHECK(cache_of({.n_bytes = 1000 * step, .mode = ReadMode::buffered}).n_slots == one.n_experts);
  CHECK_THROWS_WITH(cache_of({.n_bytes = step - 1}), Catch::Matchers::ContainsSubstring(std::to_string(step)));
}

TEST_CASE("Experts that are used in another form than stored are not cached, but refused") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  for (const char* precision : {"exact", "mixed-4-8", "experts=bf16"}) {
    CHECK_THROWS_WITH(LoadedModel(*directory, precision, {.n_slots = 3}),
                      Catch::Matchers::ContainsSubstring(precision) && Catch::Matchers::ContainsSubstring("cache"));
  }
  CHECK_NOTHROW(LoadedModel(*directory, "dense=bf16", {.n_slots = 3}));
}

TEST_CASE("A NaN code is refused by its tensor's name when its expert is first used, and not before") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const fixtures::CheckpointCopy copy(*directory);
  const std::string name = "model.layers.2.mlp.experts.7.up_proj.weight";
  copy.edit_byte(name, 5, [](unsigned char) { return static_cast<unsigned char>(0xff); });
  for (const ReadEngine engine : kEngines) {
    const Store store(copy.directory(), {.n_slots = 2, .engine = engine});
    use_all(*store.experts().visit(2, {6, 8}), 2);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto visit = store.experts().visit(2, {7});
      CHECK_THROWS_WITH(visit->take(), Catch::Matchers::ContainsSubstring(name) &&
                                           Catch::Matchers::ContainsSubstring("model.safetensors: "));
    }
    use_all(*store.experts().visit(2, {5, 6, 8}), 3);  // its slot is free again
  }
}

TEST_CASE("A file that has become shorter, and a disk that fails, name file and tensor, and nobody waits for ever") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::direct}) {
    for (const ReadEngine engine : kEngines) {
      const fixtures::CheckpointCopy copy(*directory);
      const Store store(copy.directory(), {.n_slots = 2, .mode = mode, .engine = engine});
      const std::string name = "model.layers.3.mlp.experts.4.";
      const auto* lost = store.checkpoint.find(name + "down_proj.weight");
      std::filesystem::resize_file(copy.weights(), static_cast<std::uintmax_t>(lost->file_offset + 100));
      ThreadPool pool(2);
      auto visit = store.experts().visit(3, {0, 4, 1, 10});  // experts 0, 1 and 10 lie before it
      CHECK_THROWS_WITH(pool.parallel_for(4, [&](std::int64_t, int) { const runtime::TakenExpert taken(*visit); }),
                        Catch::Matchers::ContainsSubstring(name) &&
                            Catch::Matchers::ContainsSubstring("model.safetensors: ") &&
                            Catch::Matchers::ContainsSubstring("shorter"));
      visit.reset();
      use_all(*store.experts().visit(3, {0, 1, 10}), 3);
    }
  }
}

TEST_CASE("Where direct reads fail, buffered ones are chosen, unless direct ones were asked for") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  for (const ReadEngine engine : {ReadEngine::threads, ReadEngine::blocking}) {
    const Store works(*directory, {.n_slots = 4, .engine = engine});
    if (works.experts().cache()->direct_rate == 0) KALIBRI_SKIP("this file system has no direct reads");
    const FailingDirectReads failing;
    const Store store(*directory, {.n_slots = 4, .engine = engine});
    const Store direct(*directory, {.n_slots = 4, .mode = ReadMode::direct, .engine = engine});
    CHECK_THROWS_WITH(use_all(*direct.experts().visit(0, {0}), 1),
                      Catch::Matchers::ContainsSubstring("Invalid argument"));
    CHECK_FALSE(store.experts().cache()->is_direct);
    CHECK(store.experts().cache()->direct_rate == 0);
    for (std::int64_t layer = 0; layer < 5; ++layer)
      use_all(*store.experts().visit(layer, {0, 1, 2, 3, 4, 5, 6, 7}), 8);
    CHECK(store.experts().statistics().n_misses == 5 * 8);
  }
}

TEST_CASE("A task that throws with an expert in hand leaves its slot to the other threads") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const Store store(*directory, {.n_slots = 1});
  ThreadPool pool(2);
  for (int run = 0; run < 50; ++run) {
    const auto visit = store.experts().visit(0, {3, 1, 2, 0});
    CHECK_THROWS_WITH(pool.parallel_for(4,
                                        [&](std::int64_t i, int) {
                                          const runtime::TakenExpert taken(*visit);
                                          if (i == run % 4) throw std::runtime_error("task");
                                        }),
                      "task");
  }
  use_all(*store.experts().visit(0, {0, 1}), 2);
}

TEST_CASE("A visit that ends with reads under way, and visits of other sessions, leave every slot usable") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  for (const ReadEngine engine : kEngines) {
    const Store store(*directory, {.n_slots = 2, .mode = ReadMode::buffered, .engine = engine});
    for (std::int32_t run = 0; run < 200; ++run) {
      store.experts().visit(0, {run % 16, (run + 1) % 16, (run + 2) % 16, (run + 3) % 16});  // cancelled at once
      const auto visit = store.experts().visit(0, {(run + 8) % 16, (run + 9) % 16, (run + 10) % 16});
      REQUIRE(use_all(*visit, 3).size() == 3);
    }
    const auto session = [&](std::int32_t step) {
      for (std::int32_t run = 0; run < 200; ++run) {
        const auto visit = store.experts().visit(0, {run * step % 16, (run * step + 1) % 16, (run * step + 5) % 16});
        use_all(*visit, 3);
      }
    };
    std::thread other(session, 3);
    session(7);
    other.join();
  }
}

TEST_CASE("Experts that are there are handed out before those that have to be read, and stay until they were used") {
  const auto directory = fixtures::find_golden(kKolibri);
  if (!directory.has_value()) KALIBRI_SKIP("golden set kolibri1-k1-fp8 is not there");
  const Store store(*directory, {.n_slots = 2, .mode = ReadMode::buffered});
  use_all(*store.experts().visit(1, {8, 9}), 2);
  const runtime::ExpertStatistics before = store.experts().statistics();
  const auto visit = store.experts().visit(1, {3, 8, 5, 9});
  {
    const runtime::TakenExpert first(*visit);  // with the second they are all slots: nothing can be read before
    const runtime::TakenExpert second(*visit);
    CHECK(std::set{first.index(), second.index()} == std::set<std::size_t>{1, 3});
  }
  CHECK(use_all(*visit, 2).size() == 2);
  const runtime::ExpertStatistics now = store.experts().statistics() - before;
  CHECK(now.n_hits == 2);
  CHECK(now.n_misses == 2);
}
