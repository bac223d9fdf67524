// `kalibri convert`: writes a checkpoint as an MLX directory, quantised.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kalibri::cli {

struct ConvertCommandOptions {
  std::string directory;
  std::string out;
  std::optional<std::int64_t> bits;  // none of these five: 4-bit experts, 8 bits elsewhere
  std::optional<std::int64_t> attn_bits;
  std::optional<std::int64_t> expert_bits;
  std::optional<std::int64_t> embed_bits;
  std::optional<std::int64_t> head_bits;
  std::int64_t group_size = 64;
  bool no_quant = false;
  std::string rule = "cpu";
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> max_shard_bytes;
  bool dry_run = false;
  bool json = false;
  int n_threads = 0;                 // 0 = one a core
  std::ostream* progress = nullptr;  // null: none
};

/// Declares the command's arguments.
void add_convert_options(CLI::App& command, ConvertCommandOptions& options);

/// Returns the exit status: kInterrupted after Ctrl-C, which leaves nothing behind. Throws Error.
int convert_command(const ConvertCommandOptions& options, std::ostream& out, std::ostream& err);

}  // namespace kalibri::cli
