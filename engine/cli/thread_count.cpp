#include "engine/cli/thread_count.hpp"

#include <thread>

#include "engine/base/error.hpp"

namespace kalibri::cli {

int thread_count(int n_threads) {
  if (n_threads < 0 || n_threads > 1024)
    throw Error(ErrorCode::usage, "--threads: expected 1 to 1024, or 0 for one a core");
  if (n_threads > 0) return n_threads;
  const unsigned n_cores = std::thread::hardware_concurrency();
  return n_cores == 0 ? 1 : static_cast<int>(n_cores);
}

}  // namespace kalibri::cli
