#include "oracle/tests/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace kalibri::oracle::synthetic {

namespace {

using dump::layer_path;

/// Uniform in (-1, 1), the same everywhere.
double uniform(std::uint64_t& state) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return static_cast<double>(static_cast<std::int64_t>(state >> 11)) / 0x1p52 - 1;
}

std::size_t width(const Dataset& dataset) {
  return static_cast<std::size_t>(
      std::accumulate(dataset.row_dims.begin(), dataset.row_dims.end(), std::int64_t{1}, std::multiplies<>()));
}

Dataset random(std::size_t n_rows, std::int64_t columns, double scale, std::uint64_t seed) {
  Dataset dataset{{columns}, {}, true};
  for (std::size_t i = 0; i < n_rows * static_cast<std::size_t>(columns); ++i)
    dataset.values.push_back(scale * uniform(seed));
  return dataset;
}

/// index_scores and selected_blocks of one layer.
void add_selection(PromptData& prompt, std::uint64_t seed) {
  const std::int64_t n_tokens = std::ssize(prompt.tokens);
  const std::int64_t n_blocks = n_tokens / kBlockSize;
  Dataset scores = random(static_cast<std::size_t>(n_tokens), n_blocks, 5, seed);
  Dataset kept{{kKept}, {}, false};
  for (std::int64_t t = 0; t < n_tokens; ++t) {
    const std::int64_t n_complete = (t + 1) / kBlockSize;
    const auto row = scores.values.begin() + t * n_blocks;
    std::transform(row, row + n_complete, row, [](double score) { return std::abs(score); });
    std::fill(row + n_complete, row + n_blocks, -1.0);
    std::vector<std::int64_t> blocks(static_cast<std::size_t>(n_complete));
    std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
    std::sort(blocks.begin(), blocks.end(), [&row](std::int64_t a, std::int64_t b) { return row[a] > row[b]; });
    blocks.resize(static_cast<std::size_t>(std::min(kKept, n_complete)));
    std::sort(blocks.begin(), blocks.end());
    kept.values.insert(kept.values.end(), blocks.begin(), blocks.end());
    kept.values.resize(static_cast<std::size_t>((t + 1) * kKept), -1);
  }
  if (n_blocks > 0) prompt.datasets[layer_path(kSparseLayer, "index_scores")] = scores;
  prompt.datasets[layer_path(kSparseLayer, "selected_blocks")] = kept;
}

PromptData exact_prompt(const std::string& name, std::size_t n_tokens, std::uint64_t seed) {
  PromptData prompt{name, {}, {}, {}};
  for (std::size_t t = 0; t < n_tokens; ++t)
    prompt.tokens.push_back(static_cast<std::int32_t>((7 * t + seed) % kVocab));
  prompt.datasets["embedding"] = random(n_tokens, kHidden, 1, seed + 1);
  prompt.datasets["final_norm"] = random(n_tokens, kHidden, 2, seed + 2);
  prompt.datasets["logits"] = random(n_tokens, kVocab, 4, seed + 3);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::uint64_t here = seed + 100 * static_cast<std::uint64_t>(layer + 1);
    prompt.datasets[layer_path(layer, "residual")] = random(n_tokens, kHidden, 3, here);
    prompt.datasets[layer_path(layer, "router_logits")] = random(n_tokens, kExperts, 5, here + 1);
    prompt.datasets[layer_path(layer, "expert_weights")] = random(n_tokens, kTopK, 0.5, here + 2);
    Dataset ids{{kTopK}, {}, false}, gaps{{}, {}, true};
    for (std::size_t t = 0; t < n_tokens; ++t) {
      ids.values.push_back(static_cast<double>((t + here) % kExperts));
      ids.values.push_back(static_cast<double>((t + here + 3) % kExperts));
      gaps.values.push_back(1 + 0.01 * static_cast<double>(t));
    }
    prompt.datasets[layer_path(layer, "expert_ids")] = ids;
    prompt.datasets[layer_path(layer, "router_gap")] = gaps;
  }
  add_selection(prompt, seed + 1000);
  return prompt;
}

void write_dataset(dump::Writer& writer, const std::string& path, const Dataset& dataset, bool is_f64) {
  const auto n_rows = static_cast<std::int64_t>(dataset.values.size() / width(dataset));
  const auto write = [&](const auto& values) {
    writer.write_rows(path, n_rows, dataset.row_dims, 0, std::span(values));
  };
  if (!dataset.floating) {
    write(std::vector<std::int32_t>(dataset.values.begin(), dataset.values.end()));
  } else if (is_f64) {
    write(std::vector<double>(dataset.values));
  } else {
    std::vector<float> narrow;
    for (const double value : dataset.values) narrow.push_back(static_cast<float>(value));
    write(narrow);
  }
}

}  // namespace

double& PromptData::at(const std::string& path, std::size_t row, std::size_t column) {
  Dataset& dataset = datasets.at(path);
  return dataset.values.at(row * width(dataset) + column);
}

PromptData& Dump::prompt(const std::string& name) {
  return *std::find_if(prompts.begin(), prompts.end(),
                       [&name](const PromptData& prompt) { return prompt.name == name; });
}

dump::Reader Dump::write(const std::filesystem::path& folder, const std::string& name) const {
  {
    dump::Writer writer(folder / name, header);
    for (const PromptData& prompt : prompts) {
      writer.begin_prompt(prompt.name, prompt.tokens, "");
      for (const auto& [path, dataset] : prompt.datasets) write_dataset(writer, path, dataset, is_f64);
      for (const auto& [schedule, place] : prompt.schedules)
        writer.describe_schedule(schedule, place.first_position, place.n_prefilled);
    }
    writer.finish(1000, 0.5);
  }
  return dump::Reader(folder / name);
}

Dump exact(const std::string& mode) {
  Dump dump{{"reference", "1", "synthetic", 1, mode, "fingerprint", "native", "{}"}, {}, true};
  dump.prompts.push_back(exact_prompt("long", 21, 1));
  dump.prompts.push_back(exact_prompt("one", 1, 50));
  return dump;
}

Dump noisy(const Dump& dump, const std::string& producer, std::uint64_t seed) {
  Dump result = dump;
  result.is_f64 = false;
  result.header.producer = producer;
  for (PromptData& prompt : result.prompts) {
    for (auto& [path, dataset] : prompt.datasets) {
      if (!dataset.floating) continue;
      const double size = std::abs(*std::max_element(dataset.values.begin(), dataset.values.end(),
                                                     [](double a, double b) { return std::abs(a) < std::abs(b); }));
      for (double& value : dataset.values) {
        if (value != -1) value = static_cast<double>(static_cast<float>(value + 1e-7 * size * uniform(seed)));
      }
    }
  }
  return result;
}

Dump decoded(const Dump& chained) {
  Dump result{chained.header, {}, false};
  result.header.mode = "decode";
  for (const PromptData& prompt : chained.prompts) {
    PromptData& other = result.prompts.emplace_back(PromptData{prompt.name, prompt.tokens, {}, {}});
    const auto n_tokens = static_cast<std::int64_t>(prompt.tokens.size());
    const auto add = [&](const std::string& schedule, std::int64_t first, std::int64_t end) {
      if (first >= end) return;
      const std::vector<double>& logits = prompt.datasets.at("logits").values;
      other.datasets["decode/" + schedule + "/logits"] = {
          {kVocab}, {logits.begin() + first * kVocab, logits.begin() + end * kVocab}, true};
      other.schedules[schedule] = {first, first};
    };
    add("tail", std::max<std::int64_t>(1, n_tokens - 8), n_tokens);
    add("head", 0, std::min<std::int64_t>(13, n_tokens));
    add("bands", 0, n_tokens);
  }
  return result;
}

}  // namespace kalibri::oracle::synthetic
