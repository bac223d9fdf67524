#include "engine/cli/seeded_prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace kalibri::cli {

namespace {

/// SplitMix64 (Steele, Lea and Flood 2014): the next output.
std::uint64_t next(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<std::int32_t> seeded_ids(std::uint64_t seed, std::int64_t n, std::int64_t vocab_size) {
  std::vector<std::int32_t> ids;
  for (std::uint64_t state = seed; std::ssize(ids) < n;) {
    const std::uint64_t high = next(state) >> 32;
    ids.push_back(static_cast<std::int32_t>((high * static_cast<std::uint64_t>(vocab_size)) >> 32));
  }
  return ids;
}

std::vector<Prompt> seeded_prompts(const model::ModelInfo& info) {
  const std::int64_t longest = std::max(2 * info.window + 5, info.chooses_from);
  std::set<std::int64_t> lengths;
  for (const std::int64_t n_tokens : {std::int64_t{1}, std::int64_t{13}, info.window, longest}) {
    if (n_tokens > 0) lengths.insert(std::min(n_tokens, info.max_positions));
  }
  std::vector<Prompt> prompts;
  for (const std::int64_t n_tokens : lengths) {
    const auto seed = static_cast<std::uint64_t>(n_tokens);
    prompts.push_back({fmt::format("seeded-{}", n_tokens), seeded_ids(seed, n_tokens, info.vocab_size), {}});
  }
  return prompts;
}

std::string token_file_text(const std::vector<Prompt>& prompts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Prompt& prompt : prompts) {
    if (prompt.text_sha256.empty()) {
      json[prompt.name] = prompt.tokens;
    } else {
      json[prompt.name] = {{"tokens", prompt.tokens}, {"text_sha256", prompt.text_sha256}};
    }
  }
  return json.dump() + "\n";
}

}  // namespace kalibri::cli
