#include "oracle/compare/bands.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "oracle/compare/finding.hpp"

namespace kalibri::oracle {

namespace {

using nlohmann::json;

constexpr std::int64_t kFirstPositions = 8;
constexpr std::int64_t kMedianFrom = 16;

const LogitsRow* find_position(const LogitsDifference& logits, std::int64_t position) {
  for (const LogitsRow& row : logits.rows) {
    if (row.difference.position == position) return &row;
  }
  return nullptr;
}

/// Mean of the two middle values; NaN values make it NaN.
std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  for (const double value : values) {
    if (std::isnan(value)) return value;
  }
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/// f of every row of a tensor [T, …].
template <typename F>
std::vector<double> of_rows(const TensorRef& tensor, const F& f) {
  const std::vector<std::int64_t> shape = tensor.dump.find(tensor.prompt, tensor.path).value().shape;
  const auto width = static_cast<std::size_t>(shape.at(1));
  std::vector<double> result;
  const std::int64_t n_block = rows_per_block(shape.at(1));
  for (std::int64_t first = 0; first < shape.front(); first += n_block) {
    const std::vector<double> block =
        tensor.dump.read_f64(tensor.prompt, tensor.path, first, std::min(n_block, shape.front() - first));
    for (std::size_t begin = 0; begin < block.size(); begin += width)
      result.push_back(f(std::span(block).subspan(begin, width)));
  }
  return result;
}

/// NaN when one of them is.
double max_abs(std::span<const double> row) {
  double largest = 0;
  for (const double x : row) {
    if (std::isnan(x)) return x;
    largest = std::max(largest, std::abs(x));
  }
  return largest;
}

double norm(std::span<const double> row) {
  double squares = 0;
  for (const double x : row) squares += x * x;
  return std::sqrt(squares);
}

json first_values(const std::vector<double>& values, std::size_t n) {
  json result = json::array();
  for (std::size_t i = 0; i < std::min(n, values.size()); ++i) result.push_back(number(values[i]));
  return result;
}

/// Largest |x| of the first n positions, and the median from kMedianFrom on.
json maxima(const TensorRef& tensor, std::size_t n) {
  std::vector<double> values = of_rows(tensor, max_abs);
  json result = {{"first", first_values(values, n)}};
  values.erase(values.begin(), values.begin() + std::min<std::ptrdiff_t>(kMedianFrom, std::ssize(values)));
  result["median_from_16"] = number(median(std::move(values)));
  return result;
}

json band_row(std::int64_t first, std::int64_t end, const LogitsDifference& prefill,
              const std::optional<LogitsDifference>& decode) {
  const LogitMetrics whole = summarise_positions(prefill, first, end);
  const LogitMetrics cached = decode ? summarise_positions(*decode, first, end) : LogitMetrics{};
  return {{"first", first},
          {"end", end},
          {"kl_mean", number(whole.kl_mean)},
          {"top1", number(whole.top1)},
          {"decode_kl_mean", number(cached.kl_mean)},
          {"decode_top1", number(cached.top1)}};
}

}  // namespace

std::vector<std::pair<std::int64_t, std::int64_t>> band_edges(std::int64_t n_tokens, std::int64_t window) {
  std::vector<std::int64_t> edges;
  for (const std::int64_t edge : {0, 1, 4, 16, 64, 256}) {
    if (window == 0 || edge < window) edges.push_back(edge);
  }
  if (window > 0) edges.push_back(window);
  edges.push_back(std::max(n_tokens, edges.back()));
  std::vector<std::pair<std::int64_t, std::int64_t>> bands;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    const std::int64_t end = std::min(edges[i + 1], n_tokens);
    if (edges[i] < end) bands.emplace_back(edges[i], end);
  }
  return bands;
}

json band_rows(std::int64_t n_tokens, std::int64_t window, const LogitsDifference& prefill,
               const std::optional<LogitsDifference>& decode) {
  json rows = json::array();
  for (const auto& [first, end] : band_edges(n_tokens, window)) rows.push_back(band_row(first, end, prefill, decode));
  return rows;
}

json residual_maxima(const dump::Reader& reference, const dump::PromptInfo& prompt) {
  json rows = json::array();
  for (const std::int64_t layer : prompt.layers) {
    const std::string path = dump::layer_path(layer, "residual");
    if (!reference.find(prompt.name, path)) continue;
    json row = maxima({reference, prompt.name, path}, 3);
    row["layer"] = layer;
    rows.push_back(std::move(row));
  }
  return rows;
}

json bands_of_prompt(const dump::Reader& reference, const dump::PromptInfo& prompt, std::int64_t window,
                     const LogitsDifference& prefill, const std::optional<LogitsDifference>& decode) {
  const auto n_tokens = static_cast<std::int64_t>(prompt.tokens.size());
  json result = {{"prompt", prompt.name},
                 {"T", n_tokens},
                 {"bands", band_rows(n_tokens, window, prefill, decode)},
                 {"first_positions", json::array()}};
  for (std::int64_t position = 0; position < std::min(kFirstPositions, n_tokens); ++position) {
    const LogitsRow* whole = find_position(prefill, position);
    const LogitsRow* cached = decode ? find_position(*decode, position) : nullptr;
    result["first_positions"].push_back({{"position", position},
                                         {"kl", whole ? number(whole->difference.kl) : json()},
                                         {"decode_kl", cached ? number(cached->difference.kl) : json()}});
  }
  result["embedding_norms"] = json::array();
  if (reference.find(prompt.name, "embedding")) {
    result["embedding_norms"] = first_values(of_rows({reference, prompt.name, "embedding"}, norm), 4);
  }
  const bool has_norm = reference.find(prompt.name, "final_norm").has_value();
  result["final_norm_max"] = has_norm ? maxima({reference, prompt.name, "final_norm"}, 4) : json();
  result["residual_max"] = residual_maxima(reference, prompt);
  return result;
}

}  // namespace kalibri::oracle
