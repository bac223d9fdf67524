// How near the products come to this machine's ceilings, format by format: one token against a plain sum of the same
// bytes, many tokens against the FMA peak, each alternated with its ceiling in this process. Thread CPU time on two
// threads without a barrier; KALIBRI_ISA chooses the table, an
// argument (f32, bf16, e4m3, affine2 to affine8, affine4-int16, affine8-int16) one format. A case whose result differs
// from the scalar table prints nothing.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "engine/kernels/bench/fma_peak.hpp"
#include "engine/kernels/kernels.hpp"

namespace kalibri::kernels::bench {
namespace {

constexpr int kThreads = 2;
constexpr std::int64_t kCols = 2560;
constexpr int kRepeats = 7;

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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Anonymous memory in huge pages where the system has them.
template <class T>
T* allocate(std::size_t n) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t n_bytes = (n * sizeof(T) + kHuge - 1) / kHuge * kHuge;
  void* data = std::aligned_alloc(kHuge, n_bytes);
  if (data == nullptr) throw std::bad_alloc();
  madvise(data, n_bytes, MADV_HUGEPAGE);
  std::memset(data, 0, n_bytes);
  return static_cast<T*>(data);
}

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

/// Sum of all words, in four streams: nothing reads memory faster here.
void read(const unsigned char* data, std::size_t n_bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  const std::size_t quarter = n_bytes / 32;
  std::uint64_t sums[4] = {};
  for (std::size_t i = 0; i < quarter; ++i) {
    for (std::size_t k = 0; k < 4; ++k) sums[k] += words[k * quarter + i];
  }
  volatile std::uint64_t sink = sums[0] + sums[1] + sums[2] + sums[3];
  static_cast<void>(sink);
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

bool equals_scalar(const Product& product, const Workspace& space) {
  const std::int64_t checked = std::min<std::int64_t>(product.n_tokens, 9);
  const Product definition{*find_kernels("scalar"), product.c, product.w, checked};
  definition.pack(space);
  definition.multiply(space, 0, product.w.n_rows, space.y_scalar, nullptr);
  product.pack(space);
  seconds_of([&](int i) { product.multiply(space, i); });
  return std::memcmp(space.y, space.y_scalar, static_cast<std::size_t>(checked * product.w.n_rows) * sizeof(float)) ==
         0;
}

void one_token(const KernelTable& table, const Case& c, const Workspace& space) {
  for (const std::int64_t n_rows : {512, 640, 2560, 6144}) {
    const std::vector<MatrixView> matrices = make_matrices(c, n_rows, space.pool, space.pool_bytes, space.scale_inv);
    if (!equals_scalar({table, c, matrices[0], 1}, space)) continue;
    const std::size_t n_bytes = matrices.size() * c.n_bytes(static_cast<std::size_t>(n_rows * kCols));
    std::vector<double> shares, rates;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const double product = seconds_of([&](int i) {
        for (const MatrixView& w : matrices) Product{table, c, w, 1}.multiply(space, i);
      });
      const double sum = seconds_of(
          [&](int i) { read(space.pool + n_bytes / kThreads * static_cast<std::size_t>(i), n_bytes / kThreads); });
      shares.push_back(sum / product);
      rates.push_back(static_cast<double>(n_bytes) / product * 1e-9);
    }
    std::printf("%-6s %-13s M=1    N=%-5lld %6.1f GB/s     %.2f of the read-sum\n", table.isa, c.name,
                static_cast<long long>(n_rows), median(rates), median(shares));
    std::fflush(stdout);
  }
}

void many_tokens(const KernelTable& table, const Case& c, const Workspace& space) {
  for (const std::int64_t n_rows : {640, 6144}) {
    const std::vector<MatrixView> matrices = make_matrices(c, n_rows, space.pool, space.pool_bytes, space.scale_inv);
    for (const std::int64_t n_tokens : {8, 32, 128, 512}) {
      if (!equals_scalar({table, c, matrices[0], n_tokens}, space)) continue;
      const double flop = 2.0 * static_cast<double>(n_tokens * n_rows * kCols);
      const int products = std::max(1, static_cast<int>(4e9 / flop));
      std::size_t next = 0;
      std::vector<double> shares, rates;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        const double product = seconds_of([&](int i) {
          for (int k = 0; k < products; ++k) {
            const MatrixView& w = matrices[(next + static_cast<std::size_t>(k)) % matrices.size()];
            Product{table, c, w, n_tokens}.multiply(space, i);
          }
        });
        next += static_cast<std::size_t>(products);
        double chain_flop[kThreads];
        const double chains = seconds_of([&](int i) { chain_flop[i] = run_fma_chains(table.isa, 20'000'000); });
        const double rate = flop * products / product;
        rates.push_back(rate * 1e-9);
        shares.push_back(rate / (kThreads * chain_flop[0] / chains));
      }
      std::printf("%-6s %-13s M=%-4lld N=%-5lld %6.1f GFLOP/s  %.2f of the FMA peak\n", table.isa, c.name,
                  static_cast<long long>(n_tokens), static_cast<long long>(n_rows), median(rates), median(shares));
      std::fflush(stdout);
    }
  }
}

void run(std::string_view format) {
  const KernelTable& table = kernels();
  constexpr std::int64_t kMaxRows = 6144;
  constexpr std::int64_t kMaxTokens = 512;
  Workspace space{};
  space.pool_bytes = std::size_t{256} << 20;
  space.pool = allocate<unsigned char>(space.pool_bytes);
  space.x = allocate<float>(static_cast<std::size_t>(kMaxTokens * kCols));
  space.packed = allocate<float>(table.packed_size(kMaxTokens, kCols));
  space.y = allocate<float>(static_cast<std::size_t>(kMaxTokens * kMaxRows));
  space.y_scalar = allocate<float>(static_cast<std::size_t>(kMaxTokens * kMaxRows));
  space.scale_inv = allocate<float>(static_cast<std::size_t>((kMaxRows / kFp8Block) * (kCols / kFp8Block)));
  for (std::int64_t i = 0; i < kMaxTokens * kCols; ++i) space.x[i] = static_cast<float>(i % 251 - 125) / 64;
  for (std::int64_t i = 0; i < kMaxRows / kFp8Block * (kCols / kFp8Block); ++i)
    space.scale_inv[i] = static_cast<float>(i % 7 + 1) / 1024;
  const MatrixView largest{Format::e4m3_block, kMaxRows, kCols, nullptr, nullptr};
  for (float*& scratch : space.scratch) {
    scratch = allocate<float>(std::max(table.matmul_scratch(largest, 1), table.matmul_scratch(largest, kMaxTokens)));
  }
  for (const Case& c : kCases) {
    if (!format.empty() && format != c.name) continue;
    one_token(table, c, space);
    many_tokens(table, c, space);
  }
}

}  // namespace
}  // namespace kalibri::kernels::bench

int main(int argc, char** argv) {
  try {
    kalibri::kernels::bench::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernels_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
