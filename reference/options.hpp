// The options of `kalibri-reference run`, and the texts among them taken apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kalibri::reference {

struct Options {
  std::filesystem::path directory;  // the checkpoint
  std::filesystem::path tokens;     // {"name": [ids…], …}
  std::filesystem::path out;        // the dump
  std::string dtype = "f32";        // f32 | f64
  std::string precision = "native";
  std::string mode = "chained";   // chained | teacher-forced
  std::filesystem::path inputs;   // teacher-forced: the dump whose residuals are the layers' inputs
  std::string layers;             // "a-b" or "a"; empty = all
  std::string taps;               // "q,k" or "all"; empty = none
  std::string positions = "all";  // rows of the logits: "all", "none", "last:N", or a list such as "0,5,7-12"
  int threads = 0;                // 0 = as many as the machine has
  bool full_fingerprint = false;
};

/// Layers [first, end).
struct LayerRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// --layers of a model with n_layers. Throws Error: no range, outside the model, or a chained run that begins late.
LayerRange parse_layers(const Options& options, std::int64_t n_layers);

/// --taps: names out of `available`, in its order. Throws Error naming those that may be asked for.
std::vector<std::string_view> parse_taps(const std::string& taps, const std::vector<std::string_view>& available);

/// --positions for a prompt of n_tokens: rows, ascending. Throws Error naming the prompt.
std::vector<std::int32_t> parse_positions(const std::string& positions, std::int64_t n_tokens,
                                          const std::string& prompt);

/// Every option as a JSON object, with the number of threads in use and the build of LibTorch that computes.
std::string options_json(const Options& options, int n_threads, const std::string& arithmetic);

}  // namespace kalibri::reference
