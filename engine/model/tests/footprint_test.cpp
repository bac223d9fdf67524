// The planned memory against what a run allocates, at full layer width with few layers and experts: everything on the
// heap is counted, and a process of its own tells its resident set. The weights are zeros in holes of a file: how they
// are multiplied takes as much memory as it always does. And the released models' sizes, from headers alone.
#include "engine/model/footprint.hpp"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/anonymous_memory.hpp"
#include "engine/base/error.hpp"
#include "engine/model/generator.hpp"
#include "engine/model/tests/counted_heap.hpp"
#include "fixtures/catch.hpp"
#include "fixtures/kolibri1_maker.hpp"
#include "fixtures/qwen4_exp_maker.hpp"
#include "fixtures/temp_directory.hpp"

using namespace kalibri;
using checkpoint::Checkpoint;
using fixtures::TempDirectory;
using model::Footprint;
namespace fs = std::filesystem;

namespace {

constexpr int kThreads = 2;
constexpr std::int64_t kContext = 656;  // beyond Kolibri's window
constexpr std::int64_t kChunk = 128;

constexpr double kMiB = 1 << 20;
constexpr double kGiB = 1 << 30;

double rounded(double x, int n_digits) {
  const double unit = std::pow(10.0, n_digits);
  return std::round(x * unit) / unit;
}

/// Full layer width: a sliding layer and a full one.
fs::path wide_kolibri1(const TempDirectory& directory, bool fp8) {
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_wide();
  shape.n_experts = 8;
  shape.vocab_size = 4096;
  fixtures::Kolibri1Options options;
  options.fp8 = fp8;
  options.sparse = true;
  fixtures::make_kolibri1(directory.path() / "kolibri1", shape, options);
  return directory.path() / "kolibri1";
}

/// Three DeltaNet layers, one of them with n-gram embeddings, and a sparse one.
fs::path wide_qwen4_exp(const TempDirectory& directory) {
  fixtures::Qwen4ExpShape shape = fixtures::qwen4_exp_wide();
  shape.n_experts = 12;
  shape.vocab_size = 4096;
  fixtures::Qwen4ExpOptions options;
  options.sparse = true;
  fixtures::make_qwen4_exp(directory.path() / "qwen4_exp", shape, options);
  return directory.path() / "qwen4_exp";
}

Footprint planned(const Checkpoint& checkpoint, const std::string& precision) {
  return model::footprint(
      checkpoint,
      {.precision = runtime::Precision::parse(precision), .context = kContext, .chunk = kChunk, .n_threads = kThreads});
}

/// A short request, which needs every weight, and one of several chunks.
void run(const model::Model& model, ThreadPool& pool) {
  model::Generator generator(model, pool, {.max_tokens = kContext, .chunk = kChunk},
                             model::Generator::PromptState::forgotten);
  model::GenerateOptions options;
  options.max_tokens = 2;
  options.sampling.temperature = 0;
  for (const std::int32_t n : {2, static_cast<std::int32_t>(kContext) - 2}) {
    std::vector<std::int32_t> prompt;
    for (std::int32_t i = 0; i < n; ++i) prompt.push_back((i * 37 + n) % 4096);
    if (generator.run(prompt, options).ids.size() != 2) throw std::runtime_error("expected two tokens");
  }
}

/// Bytes of a field of /proc/self/status, for example VmHWM.
std::int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return -1;
}

struct Resident {
  std::int64_t peak = -1;  // -1: the process failed
  std::int64_t file = 0;   // at the end: pages of files
  std::int64_t own = 0;    // and of memory of its own
};

/// The resident set of a process that only loads and runs the model.
Resident resident_bytes(const fs::path& directory, const std::string& precision, runtime::WeightPlace place) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Resident resident;
    try {
      ::malloc_trim(0);                             // what the parent had and has freed
      std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins here
      const Checkpoint checkpoint = Checkpoint::open(directory);
      const model::Model model(checkpoint, runtime::Precision::parse(precision), {}, {place, kThreads, 0});
      ThreadPool pool(kThreads);
      const std::int64_t file_before = status_bytes("RssFile");
      run(model, pool);
      resident = {status_bytes("VmHWM"), status_bytes("RssFile") - file_before, status_bytes("RssAnon")};
    } catch (...) {  // the parent sees -1
    }
    const bool is_told = ::write(ends[1], &resident, sizeof(resident)) == sizeof(resident);
    ::_exit(is_told ? 0 : 1);
  }
  Resident resident;
  REQUIRE(::read(ends[0], &resident, sizeof(resident)) == sizeof(resident));
  ::close(ends[0]);
  ::close(ends[1]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return resident;
}

void check_heap(const fs::path& directory, const std::string& precision,
                runtime::WeightPlace place = runtime::WeightPlace::mapped) {
  CAPTURE(directory, precision, static_cast<int>(place));
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const Footprint plan = planned(checkpoint, precision);
  ThreadPool pool(kThreads);
  const std::int64_t before = test::heap_bytes() + AnonymousMemory::live_bytes();
  test::forget_heap_peak();
  const model::Model model(checkpoint, runtime::Precision::parse(precision), {}, {place, kThreads, 0});
  const std::int64_t of_model = test::heap_bytes() - before;
  run(model, pool);
  const std::int64_t held = model.weight_place().read_bytes;
  const std::int64_t measured = test::heap_peak_bytes() + AnonymousMemory::live_bytes() + held - before;
  // Of experts that are all alike each token takes the first ones.
  std::int64_t experts = plan.makes_experts ? plan.n_layers * plan.top_k * plan.expert_bytes : 0;
  std::int64_t expected = plan.made_bytes + plan.vector_bytes + plan.state_bytes + plan.workspace_bytes;
  if (place == runtime::WeightPlace::memory) {
    expected += plan.mapped_bytes;
    if (!plan.makes_experts) experts = plan.n_layers * plan.n_experts * plan.slot_bytes;
  }
  expected += experts;
  CAPTURE(of_model, plan.made_bytes, plan.vector_bytes, plan.state_bytes, plan.workspace_bytes, experts);
  CHECK(static_cast<double>(expected) >= 0.98 * static_cast<double>(measured));
  CHECK(static_cast<double>(expected) <= 1.02 * static_cast<double>(measured));
}

void check_resident(const fs::path& directory, const std::string& precision, runtime::WeightPlace place) {
  CAPTURE(directory, precision, static_cast<int>(place));
  const Footprint plan = planned(Checkpoint::open(directory), precision);
  const Resident measured = resident_bytes(directory, precision, place);
  const bool is_memory = place == runtime::WeightPlace::memory;
  const std::int64_t experts = plan.makes_experts ? plan.n_layers * plan.n_experts * plan.expert_bytes
                               : is_memory        ? plan.n_layers * plan.n_experts * plan.slot_bytes
                                                  : plan.all_expert_bytes;
  const std::int64_t expected = plan.resident_bytes() + experts + plan.state_bytes + plan.workspace_bytes;
  CAPTURE(measured.peak, measured.file, measured.own, expected);
  CHECK(static_cast<double>(measured.peak) <= 1.1 * static_cast<double>(expected) + (64 << 20));
  // Resident in any case is what is touched whole: weights, the experts that every token takes, and the state but for
  // the rows of the last tokens (the last is not fed, and index keys are kept of whole blocks). Not so the buffers:
  // they are as long as the longest chunk and request need them, and where pages are small nobody's bytes are not
  // there.
  const std::int64_t weights = plan.always_bytes() + plan.vector_bytes + plan.routed_bytes();
  CHECK(measured.peak >= weights + plan.state_bytes - 4 * plan.token_bytes);
  if (is_memory) CHECK(measured.own >= weights);  // the session has ended
  // What was read to be copied or to make another form of is gone from the files' pages.
  if (is_memory || plan.mapped_bytes < plan.made_bytes) CHECK(measured.file <= plan.embedding_bytes + (8 << 20));
}

}  // namespace

TEST_CASE("The released Kolibri 1 has the sizes that its shapes give, from headers alone") {
  const TempDirectory directory;
  fixtures::Kolibri1Options options;
  options.sparse = true;
  options.n_shards = 32;
  fixtures::make_kolibri1(directory.path() / "released", fixtures::kolibri1_released(), options);
  const Checkpoint checkpoint = Checkpoint::open(directory.path() / "released");

  // H 2560, 48 and 4 heads of 128, 50 layers, 384 experts and a shared one of 512, vocabulary 128,000.
  const double attention = 50 * (2 * 2560.0 * 6144 + 2 * 2560.0 * 512);
  const double expert = 3 * 2560.0 * 512;
  const double router = 50 * 2560.0 * 384;
  const double head = 2560.0 * 128000;
  const double fp8 = 1 + 4.0 / (128 * 128);
  const Footprint native = planned(checkpoint, "native");
  CHECK(static_cast<double>(native.always_bytes()) == (attention + 50 * expert) * fp8 + 2 * (router + head));
  CHECK(static_cast<double>(native.embedding_bytes) == 2 * head);
  CHECK(static_cast<double>(native.routed_bytes()) == 6 * 50 * expert * fp8);
  CHECK(static_cast<double>(native.all_expert_bytes) == 384 * 50 * expert * fp8);
  CHECK(static_cast<double>(native.scale_bytes) == 384 * 50 * expert * 4 / (128 * 128));
  CHECK(native.slot_bytes >= native.stored_expert_bytes - native.scale_bytes / (384 * 50));
  CHECK(native.slot_bytes <= native.stored_expert_bytes + (32 << 10));
  CHECK(static_cast<double>(native.head_bytes) == 2 * head);
  CHECK(rounded(static_cast<double>(native.always_bytes()) / 1e9, 2) == 2.65);
  CHECK(rounded(static_cast<double>(native.routed_bytes()) / 1e9, 2) == 1.18);
  CHECK(rounded(static_cast<double>(native.always_bytes() + native.embedding_bytes) / kGiB, 1) == 3.1);
  CHECK(rounded(static_cast<double>(native.all_expert_bytes) / 1e9, 1) == 75.5);
  CHECK(native.token_bytes == 10 * 2 * 512 * 4);                  // ten full layers, keys and values in f32
  CHECK(native.fixed_state_bytes() == 40 * 513LL * 2 * 512 * 4);  // forty windows
  CHECK_FALSE(native.makes_experts);

  const Footprint mixed = planned(checkpoint, "mixed-4-8");
  const double bits8 = 1 + 4.0 / 64;
  const double bits4 = 0.5 + 4.0 / 64;
  CHECK(static_cast<double>(mixed.always_bytes()) == (attention + 50 * expert + head) * bits8 + 2 * router);
  CHECK(static_cast<double>(mixed.expert_bytes) == expert * bits4);
  CHECK(static_cast<double>(mixed.head_bytes) == head * bits8);
  CHECK(rounded(static_cast<double>(mixed.always_bytes()) / 1e9, 2) == 2.47);
  CHECK(rounded(static_cast<double>(mixed.routed_bytes()) / 1e9, 2) == 0.66);
  // An embedding is looked up as it is stored; one that was converted has 8 bits.
  CHECK(rounded((static_cast<double>(mixed.always_bytes()) + head * bits8) / kGiB, 1) == 2.6);
  CHECK(mixed.embedding_bytes == native.embedding_bytes);
  CHECK(rounded(static_cast<double>(mixed.expert_bytes) * 384 * 50 / 1e9, 1) == 42.5);
  CHECK(mixed.makes_experts);
}

TEST_CASE("The released qwen4_exp has the sizes that its shapes give, from headers alone") {
  const TempDirectory directory;
  fixtures::Qwen4ExpOptions options;
  options.sparse = true;
  options.n_shards = 32;
  fixtures::make_qwen4_exp(directory.path() / "released", fixtures::qwen4_exp_released(), options);
  const Footprint f = planned(Checkpoint::open(directory.path() / "released"), "native");

  const double h = 2560;
  const double streams = 4 * h;
  const double delta = h * 10240 + 2 * h * 6144 + 2 * h * 48;
  const double sparse = h * 12288 + 2 * h * 512 + h * 6144 + h * 640;
  const double connections = 48 * 2 * (2 * 320 * streams + 4 * streams) + 2 * 320 * streams;
  const double ngram = h * streams + h * h;
  const double expert = 3 * h * 640;
  const double dense = 36 * delta + 12 * sparse + connections + ngram + 48 * (expert + 512 * h + h);
  const double head = h * 248320;
  CHECK(static_cast<double>(f.always_bytes()) == 2 * (dense + head));
  CHECK(static_cast<double>(f.all_expert_bytes) == 48 * 512 * expert * (1 + 4.0 / (128 * 128)));
  CHECK(rounded(static_cast<double>(f.always_bytes()) / 1e9, 2) == 8.62);
  CHECK(rounded(static_cast<double>(f.routed_bytes()) / 1e9, 2) == 2.36);
  CHECK(rounded(static_cast<double>(f.always_bytes() + f.embedding_bytes) / kGiB, 1) == 9.2);
  CHECK(rounded(static_cast<double>(f.all_expert_bytes) / 1e9, 1) == 120.8);
  CHECK(rounded(static_cast<double>(f.scale_bytes) / kMiB, 0) == 28);
  CHECK(rounded(static_cast<double>(f.table_bytes) / 1e9, 1) == 51.2);
  // Keys and values of 12 layers, and pooled index keys: one of 128 for each 4 tokens. (54 KiB is with all of them.)
  CHECK(f.token_bytes == 12 * (2 * 2 * 256 * 4 + 128 * 4 / 4) + 3 * 8);
  const double memory = 36 * 48 * 128 * 128 * 4.0;  // 108 MiB
  const double histories = 36 * 3 * 10240 * 4.0 + 9 * streams * 4;
  CHECK(static_cast<double>(f.fixed_state_bytes()) == memory + histories + 12 * 4 * 128 * 4);
  CHECK(rounded(static_cast<double>(f.fixed_state_bytes()) / kMiB, 1) == 112.6);
}

TEST_CASE("A context that a model does not have is refused") {
  const TempDirectory directory;
  const Checkpoint checkpoint = Checkpoint::open(wide_kolibri1(directory, true));
  const auto with = [&](std::int64_t context) {
    return model::footprint(checkpoint, {.precision = runtime::Precision::parse("native"), .context = context});
  };
  CHECK(with(0).context == model::FootprintOptions::kDefaultContext);
  CHECK_THROWS_WITH(with(1LL << 40), Catch::Matchers::ContainsSubstring("max_position_embeddings"));
}

TEST_CASE("At Kolibri's layer width the planned bytes are within 2 % of what model and session allocate") {
  const TempDirectory fp8;
  const TempDirectory bf16;
  const fs::path released = wide_kolibri1(fp8, true);
  for (const char* precision : {"native", "mixed-4-8"}) {
    check_heap(released, precision);
    check_heap(released, precision, runtime::WeightPlace::memory);
  }
  check_heap(wide_kolibri1(bf16, false), "native");
}

TEST_CASE("At qwen4_exp's layer width the planned bytes are within 2 % of what model and session allocate") {
  const TempDirectory directory;
  const fs::path released = wide_qwen4_exp(directory);
  for (const char* precision : {"native", "experts=affine:4:64,activations=int16"}) check_heap(released, precision);
  check_heap(released, "native", runtime::WeightPlace::memory);
}

TEST_CASE("A run's resident set is what was planned, a tenth and 64 MiB aside") {
  const TempDirectory directory;
  const fs::path kolibri1 = wide_kolibri1(directory, true);
  const fs::path qwen4_exp = wide_qwen4_exp(directory);
  for (const auto place : {runtime::WeightPlace::mapped, runtime::WeightPlace::memory}) {
    check_resident(kolibri1, "native", place);
    check_resident(kolibri1, "dense=affine:4:64,experts=affine:4:64,head=affine:8:64", place);
    check_resident(qwen4_exp, "native", place);
  }
}

TEST_CASE("A cache's slot is as large as planned") {
  const TempDirectory directory;
  for (const fs::path& made : {wide_kolibri1(directory, true), wide_qwen4_exp(directory)}) {
    const Checkpoint checkpoint = Checkpoint::open(made);
    const model::Model model(checkpoint, runtime::Precision::parse("native"), {.n_slots = 2});
    CHECK(planned(checkpoint, "native").slot_bytes == model.expert_cache()->slot_bytes);
  }
}

TEST_CASE("What is remembered of each tensor and each expert is as large as planned") {
  const TempDirectory directory;
  fixtures::Kolibri1Shape shape = fixtures::kolibri1_tiny();
  shape.n_experts = 2000;
  fixtures::Kolibri1Options options;
  options.sparse = true;
  fixtures::make_kolibri1(directory.path() / "many", shape, options);
  const std::int64_t before = test::heap_bytes();
  const Checkpoint checkpoint = Checkpoint::open(directory.path() / "many");
  const std::int64_t of_tensors = test::heap_bytes() - before;
  const model::Model model(checkpoint, runtime::Precision::parse("native"), {.n_slots = 1});
  const std::int64_t of_experts = test::heap_bytes() - before - of_tensors;
  const Footprint plan = planned(checkpoint, "native");
  CAPTURE(of_tensors / static_cast<std::int64_t>(checkpoint.tensors().size()),
          of_experts / (plan.n_layers * plan.n_experts));
  const std::int64_t measured = of_tensors + of_experts - plan.vector_bytes;
  CHECK(static_cast<double>(plan.index_bytes) >= 0.9 * static_cast<double>(measured));
  CHECK(static_cast<double>(plan.index_bytes) <= 1.1 * static_cast<double>(measured));
}
