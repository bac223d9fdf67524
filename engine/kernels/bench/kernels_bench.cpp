// How near the products come to this machine's ceilings, format by format: one token against a plain sum of the same
// bytes, many tokens against the FMA peak, each alternated with its ceiling in this process. Thread CPU time on two
// threads without a barrier; KALIBRI_ISA chooses the table. A case whose result differs from the scalar table's ends
// the bench.
//   kernels_bench [--json] [--quick] [FORMAT...]    all, or some of: f32, bf16, e4m3, affine2 to affine8,
//                                                   affine4-int16, affine8-int16; --quick only tries whether it runs
//   kernels_bench --isas                            the tables that can be measured here
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/kernels/bench/ceilings.hpp"
#include "engine/kernels/kernels.hpp"
#include "engine/kernels/read_sum.hpp"

namespace kalibri::kernels::bench {
namespace {

constexpr int kThreads = 2;
constexpr std::int64_t kCols = 2560;

/// What is measured, and how thoroughly. One repeat out of cache takes a hundredth of a second or more.
struct Effort {
  std::vector<std::int64_t> one_token_rows = {512, 640, 2560, 6144};
  std::vector<std::int64_t> many_token_rows = {640, 6144};
  std::vector<std::int64_t> n_tokens = {8, 32, 128, 512};
  std::size_t pool_bytes = std::size_t{256} << 20;
  double flop = 4e9;  // of many-token products, a repeat
  std::int64_t chain_rounds = 20'000'000;
  int n_repeats = 7;

  static Effort quick() { return {{512}, {640}, {8}, std::size_t{8} << 20, 1e8, 1'000'000, 1}; }
};

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Runs work(thread) on every thread at once; the longest CPU time.
double seconds_of(const std::function<void(int)>& work) {
  double seconds[kThreads] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const double start = thread_seconds();
      work(i);
      seconds[i] = thread_seconds() - start;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(seconds, seconds + kThreads);
}

/// Of an odd number of values.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// What was measured of one product; medians of the repeats.
struct Measurement {
  const char* isa;
  const char* format;
  std::int64_t n_tokens;
  std::int64_t n_rows;
  double rate;     // GB/s of weights for one token, else GFLOP/s
  double ceiling;  // of the same kind: the read-sum, or the FMA peak
  double share;    // of the ceiling; the median of the shares, not the share of the medians
};

/// Writes measurements as they come, as lines or as a JSON array.
class Output {
 public:
  explicit Output(bool is_json) : is_json_(is_json) {}

  void write(const Measurement& m) {
    const auto n_tokens = static_cast<long long>(m.n_tokens), n_rows = static_cast<long long>(m.n_rows);
    if (is_json_) {
      std::printf(
          "%s\n {\"isa\": \"%s\", \"format\": \"%s\", \"tokens\": %lld, \"rows\": %lld, \"cols\": %lld, "
          "\"rate\": %.6g, \"ceiling\": %.6g, \"share\": %.6g}",
          n_written_ == 0 ? "[" : ",", m.isa, m.format, n_tokens, n_rows, static_cast<long long>(kCols), m.rate,
          m.ceiling, m.share);
    } else {
      const bool is_one = m.n_tokens == 1;
      std::printf("%-6s %-13s M=%-4lld N=%-5lld %6.1f of %6.1f %-7s %.2f of the %s\n", m.isa, m.format, n_tokens,
                  n_rows, m.rate, m.ceiling, is_one ? "GB/s" : "GFLOP/s", m.share, is_one ? "read-sum" : "FMA peak");
    }
    ++n_written_;
    std::fflush(stdout);
  }
  void end() const {
    if (is_json_) std::puts(n_written_ == 0 ? "[]" : "\n]");
  }

 private:
  bool is_json_;
  int n_written_ = 0;
};

/// Anonymous memory in huge pages where the system has them.
class Memory {
 public:
  /// n zeros, there as long as this object.
  template <class T>
  T* allocate(std::size_t n) {
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    const std::size_t n_bytes = (n * sizeof(T) + kHuge - 1) / kHuge * kHuge;
    blocks_.emplace_back(std::aligned_alloc(kHuge, n_bytes));
    void* data = blocks_.back().get();
    if (data == nullptr) throw std::bad_alloc();
    madvise(data, n_bytes, MADV_HUGEPAGE);
    std::memset(data, 0, n_bytes);
    return static_cast<T*>(data);
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::vector<std::unique_ptr<void, Free>> blocks_;
};

struct Case {
  const char* name;
  Format format;
  int bits;                   // a weight
  std::int32_t max_code = 0;  // activations as integers up to this; 0: as they are

  /// Bytes of a matrix with its scales and biases, which follow its codes; FP8's scales are few and elsewhere.
  [[nodiscard]] std::size_t n_bytes(std::size_t n_weights) const {
    return n_weights * static_cast<std::size_t>(bits) / 8 + 2 * grid_bytes(n_weights);
  }
  [[nodiscard]] std::size_t grid_bytes(std::size_t n_weights) const {
    return format == Format::affine ? n_weights / kGroup * sizeof(std::uint16_t) : 0;
  }
  static constexpr std::size_t kGroup = 64;
};
constexpr Case kCases[] = {{"f32", Format::f32, 32},
                           {"bf16", Format::bf16, 16},
                           {"e4m3", Format::e4m3_block, 8},
                           {"affine2", Format::affine, 2},
                           {"affine3", Format::affine, 3},
                           {"affine4", Format::affine, 4},
                           {"affine5", Format::affine, 5},
                           {"affine6", Format::affine, 6},
                           {"affine8", Format::affine, 8},
                           {"affine4-int16", Format::affine, 4, 32767},
                           {"affine8-int16", Format::affine, 8, 32767}};

/// Weights of magnitude around 1; of FP8 codes, one in 4,096 is subnormal, as in matrices of real models. Affine:
/// random codes, scales and biases.
void fill(const Case& c, std::size_t n, unsigned char* data) {
  std::uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525 + 1013904223; };
  const auto put_float = [&](std::size_t at, std::size_t n_bytes) {
    const std::uint32_t f32 = 0x3f000000U | (next() >> 1 & 0x80ffffffU);
    std::memcpy(data + at, reinterpret_cast<const char*>(&f32) + 4 - n_bytes, n_bytes);
  };
  switch (c.format) {
    case Format::f32:
      for (std::size_t i = 0; i < n; ++i) put_float(4 * i, 4);
      return;
    case Format::bf16:
      for (std::size_t i = 0; i < n; ++i) put_float(2 * i, 2);
      return;
    case Format::e4m3_block:
      for (std::size_t i = 0; i < n; ++i) {
        next();
        data[i] = static_cast<unsigned char>(state >> 20 == 0 ? 0x01 : 0x30 | (state >> 24 & 0x8f));
      }
      return;
    case Format::affine: {
      const std::size_t n_codes = c.n_bytes(n) - 2 * c.grid_bytes(n);
      for (std::size_t i = 0; i < n_codes; ++i) data[i] = static_cast<unsigned char>(next() >> 24);
      for (std::size_t at = n_codes; at < c.n_bytes(n); at += 2) put_float(at, 2);
      return;
    }
  }
}

/// Matrices of one shape, side by side in `pool`.
std::vector<MatrixView> make_matrices(const Case& c, std::int64_t n_rows, unsigned char* pool, std::size_t pool_bytes,
                                      const float* scale_inv) {
  const auto n = static_cast<std::size_t>(n_rows * kCols);
  std::vector<MatrixView> matrices;
  for (unsigned char* at = pool; at + c.n_bytes(n) <= pool + pool_bytes; at += c.n_bytes(n)) {
    MatrixView w{c.format, n_rows, kCols, at, scale_inv};
    if (c.format == Format::affine) {
      w.bits = c.bits;
      w.group_size = Case::kGroup;
      w.scales = at + c.n_bytes(n) - 2 * c.grid_bytes(n);
      w.biases = at + c.n_bytes(n) - c.grid_bytes(n);
    }
    matrices.push_back(w);
    fill(c, n, at);
  }
  return matrices;
}

struct Workspace {
  unsigned char* pool;
  std::size_t pool_bytes;
  float* x;
  float* packed;
  float* y;
  float* y_scalar;
  float* scratch[kThreads];
  float* scale_inv;
};

/// One product, as the case has it.
struct Product {
  const KernelTable& table;
  const Case& c;
  const MatrixView& w;
  std::int64_t n_tokens;

  [[nodiscard]] unsigned char* integers(const Workspace& space) const {
    return reinterpret_cast<unsigned char*>(space.packed);
  }
  void pack(const Workspace& space) const {
    const Activations x{space.x, kCols, n_tokens, kCols};
    if (c.max_code == 0) return table.pack(x, 0, n_tokens, space.packed);
    table.pack_integers(w, x, c.max_code, 0, n_tokens, integers(space));
  }
  void multiply(const Workspace& space, std::int64_t begin, std::int64_t end, float* y, float* scratch) const {
    if (c.max_code == 0) return table.matmul(w, begin, end, space.packed, n_tokens, y, w.n_rows, scratch);
    table.matmul_integers(w, begin, end, integers(space), n_tokens, y, w.n_rows);
  }
  /// A thread's share of the rows.
  void multiply(const Workspace& space, int thread) const {
    multiply(space, w.n_rows / kThreads * thread, w.n_rows / kThreads * (thread + 1), space.y, space.scratch[thread]);
  }
};

/// Throws std::runtime_error when a product's bits are not the scalar table's.
void check_against_scalar(const Product& product, const Workspace& space) {
  const std::int64_t checked = std::min<std::int64_t>(product.n_tokens, 9);
  const Product definition{*find_kernels("scalar"), product.c, product.w, checked};
  definition.pack(space);
  definition.multiply(space, 0, product.w.n_rows, space.y_scalar, nullptr);
  product.pack(space);
  seconds_of([&](int i) { product.multiply(space, i); });
  const auto n_bytes = static_cast<std::size_t>(checked * product.w.n_rows) * sizeof(float);
  if (std::memcmp(space.y, space.y_scalar, n_bytes) != 0) {
    throw std::runtime_error(std::string(product.c.name) + ", " + std::to_string(product.n_tokens) +
                             " tokens: not the bits of the scalar table");
  }
}

void one_token(const KernelTable& table, const Case& c, const Workspace& space, const Effort& effort, Output& out) {
  for (const std::int64_t n_rows : effort.one_token_rows) {
    const std::vector<MatrixView> matrices = make_matrices(c, n_rows, space.pool, space.pool_bytes, space.scale_inv);
    check_against_scalar({table, c, matrices[0], 1}, space);
    const std::size_t n_bytes = matrices.size() * c.n_bytes(static_cast<std::size_t>(n_rows * kCols));
    const std::size_t n_part_bytes = n_bytes / kThreads;
    std::vector<double> shares, rates, ceilings;
    std::uint64_t sums[kThreads];
    for (int repeat = 0; repeat < effort.n_repeats; ++repeat) {
      const double product = seconds_of([&](int i) {
        for (const MatrixView& w : matrices) Product{table, c, w, 1}.multiply(space, i);
      });
      const double sum = seconds_of(
          [&](int i) { sums[i] = read_sum(space.pool + n_part_bytes * static_cast<std::size_t>(i), n_part_bytes); });
      volatile std::uint64_t used = sums[0];  // or a compiler that sees through it all leaves the reading out
      static_cast<void>(used);
      shares.push_back(sum / product);
      rates.push_back(static_cast<double>(n_bytes) / product * 1e-9);
      ceilings.push_back(static_cast<double>(n_bytes) / sum * 1e-9);
    }
    out.write({table.isa, c.name, 1, n_rows, median(rates), median(ceilings), median(shares)});
  }
}

void many_tokens(const KernelTable& table, const Case& c, const Workspace& space, const Effort& effort, Output& out) {
  for (const std::int64_t n_rows : effort.many_token_rows) {
    const std::vector<MatrixView> matrices = make_matrices(c, n_rows, space.pool, space.pool_bytes, space.scale_inv);
    for (const std::int64_t n_tokens : effort.n_tokens) {
      check_against_scalar({table, c, matrices[0], n_tokens}, space);
      const double flop = 2.0 * static_cast<double>(n_tokens * n_rows * kCols);
      const int products = std::max(1, static_cast<int>(effort.flop / flop));
      std::size_t next = 0;
      std::vector<double> shares, rates, ceilings;
      for (int repeat = 0; repeat < effort.n_repeats; ++repeat) {
        const double product = seconds_of([&](int i) {
          for (int k = 0; k < products; ++k) {
            const MatrixView& w = matrices[(next + static_cast<std::size_t>(k)) % matrices.size()];
            Product{table, c, w, n_tokens}.multiply(space, i);
          }
        });
        next += static_cast<std::size_t>(products);
        double chain_flop[kThreads];
        const double chains =
            seconds_of([&](int i) { chain_flop[i] = run_fma_chains(table.isa, effort.chain_rounds); });
        const double rate = flop * products / product;
        const double ceiling = kThreads * chain_flop[0] / chains;
        rates.push_back(rate * 1e-9);
        ceilings.push_back(ceiling * 1e-9);
        shares.push_back(rate / ceiling);
      }
      out.write({table.isa, c.name, n_tokens, n_rows, median(rates), median(ceilings), median(shares)});
    }
  }
}

bool has_peak(const KernelTable& table) { return run_fma_chains(table.isa, 1) > 0; }

void print_isas() {
  for (const KernelTable* table : runnable_kernels()) {
    if (has_peak(*table)) std::puts(table->isa);
  }
}

void run(bool is_json, const Effort& effort, const std::vector<std::string_view>& formats) {
  for (const std::string_view format : formats) {
    if (std::none_of(std::begin(kCases), std::end(kCases), [&](const Case& c) { return format == c.name; })) {
      throw std::runtime_error("no format '" + std::string(format) + "'");
    }
  }
  const KernelTable& table = kernels();
  if (!has_peak(table)) throw std::runtime_error(std::string(table.isa) + ": a table without vectors has no peak");
  constexpr std::int64_t kMaxRows = 6144;
  constexpr std::int64_t kMaxTokens = 512;
  Memory memory;
  Workspace space{};
  space.pool_bytes = effort.pool_bytes;
  space.pool = memory.allocate<unsigned char>(space.pool_bytes);
  space.x = memory.allocate<float>(static_cast<std::size_t>(kMaxTokens * kCols));
  space.packed = memory.allocate<float>(table.packed_size(kMaxTokens, kCols));
  space.y = memory.allocate<float>(static_cast<std::size_t>(kMaxTokens * kMaxRows));
  space.y_scalar = memory.allocate<float>(static_cast<std::size_t>(kMaxTokens * kMaxRows));
  space.scale_inv = memory.allocate<float>(static_cast<std::size_t>((kMaxRows / kFp8Block) * (kCols / kFp8Block)));
  for (std::int64_t i = 0; i < kMaxTokens * kCols; ++i) space.x[i] = static_cast<float>(i % 251 - 125) / 64;
  for (std::int64_t i = 0; i < kMaxRows / kFp8Block * (kCols / kFp8Block); ++i)
    space.scale_inv[i] = static_cast<float>(i % 7 + 1) / 1024;
  const MatrixView largest{Format::e4m3_block, kMaxRows, kCols, nullptr, nullptr};
  for (float*& scratch : space.scratch) {
    scratch =
        memory.allocate<float>(std::max(table.matmul_scratch(largest, 1), table.matmul_scratch(largest, kMaxTokens)));
  }
  Output out(is_json);
  for (const Case& c : kCases) {
    if (!formats.empty() && std::find(formats.begin(), formats.end(), c.name) == formats.end()) continue;
    one_token(table, c, space, effort, out);
    many_tokens(table, c, space, effort, out);
  }
  out.end();
}

}  // namespace
}  // namespace kalibri::kernels::bench

int main(int argc, char** argv) {
  using namespace kalibri::kernels::bench;
  try {
    std::vector<std::string_view> formats(argv + 1, argv + argc);
    const auto take = [&](std::string_view flag) { return std::erase(formats, flag) > 0; };
    const bool is_json = take("--json");
    const Effort effort = take("--quick") ? Effort::quick() : Effort();
    if (take("--isas")) {
      print_isas();
    } else {
      run(is_json, effort, formats);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernels_bench: %s\n", error.what());
    return 2;
  }
  return 0;
}
