// `kalibri check-dequant`: an FP8 checkpoint against the bf16 one that it was made from.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kalibri::cli {

struct CheckDequantOptions {
  std::string fp8;
  std::string bf16;
  std::optional<std::int64_t> shard;
  bool json = false;
  int n_threads = 0;                 // 0 = one a core
  std::ostream* progress = nullptr;  // null: none
};

/// Declares the command's arguments.
void add_check_dequant_options(CLI::App& command, CheckDequantOptions& options);

/// Returns the exit status: 1 when a tensor does not match. Throws Error.
int check_dequant_command(const CheckDequantOptions& options, std::ostream& out);

}  // namespace kalibri::cli
