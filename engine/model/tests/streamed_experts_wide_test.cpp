// The memory of a cache of experts at the released layer width: no more than its slots, whatever was read.
#include <fstream>
#include <string>
#include <vector>

#include "engine/model/tests/run.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;

namespace {

/// A line of /proc/self/status in bytes.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return -1;
}

}  // namespace

TEST_CASE("At real layer width every expert passes through the cache, and memory is that of its slots") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  KALIBRI_SKIP("a sanitizer's own memory would be counted");
#endif
  constexpr std::int64_t kHuge = std::int64_t{2} << 20;
  constexpr std::int64_t kSmall = std::int64_t{24} << 20;  // scratch of the kernels, rows of 64 tokens, reading threads
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_wide();
  shape.n_experts = 48;
  shape.vocab_size = 512;
  const fixtures::TempDirectory scratch;
  fixtures::make_kolibri1(scratch.path() / "wide", shape, {});
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 256; ++i) ids.push_back(i * 37 % 512);
  ThreadPool pool(2);
  for (const runtime::ReadMode mode : {runtime::ReadMode::direct, runtime::ReadMode::buffered}) {
    const std::int64_t before = status_bytes("RssAnon");
    const std::int64_t file_before = status_bytes("RssFile");
    REQUIRE(before > 0);
    const test::LoadedModel loaded(scratch.path() / "wide", "native", {.n_slots = 8, .mode = mode});
    const runtime::ExpertCacheInfo cache = *loaded.model.expert_cache();
    const std::int64_t expert_bytes = 3 * shape.hidden_size * shape.moe_intermediate_size;
    CHECK(cache.slot_bytes >= expert_bytes);
    CHECK(cache.slot_bytes <= expert_bytes * 102 / 100);
    model::Session session(loaded.model, pool, {256, 64});
    session.forward(ids, {});
    const std::int64_t all_bytes = cache.n_layers * cache.n_experts * cache.slot_bytes;
    CHECK(loaded.model.expert_statistics().bytes_read > all_bytes);  // in four chunks, each expert more than once
    const std::int64_t cache_bytes = cache.n_layers * cache.n_slots * cache.slot_bytes;
    CHECK(status_bytes("RssAnon") - before <= cache_bytes + kHuge + kSmall);
    CHECK(status_bytes("RssAnon") - before >= cache_bytes);  // the control: they are counted at all
    CHECK(status_bytes("RssFile") - file_before < all_bytes);
  }
}
