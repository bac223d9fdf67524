#include "reference/ngram.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "reference/error.hpp"
#include "reference/gated_residual.hpp"

namespace kalibri::reference {
namespace {

/// Throws Error when the checkpoint has `name` and it is not `expected`.
void check_constants(const Qwen4ExpTensors& tensors, const std::string& name,
                     const std::vector<std::int64_t>& expected) {
  if (tensors.checkpoint.find(tensors.prefix + name) == nullptr) return;
  const std::array shape{static_cast<std::int64_t>(expected.size())};
  const TensorView& view =
      tensors.checkpoint.require(tensors.prefix + name, shape, std::array<std::string_view, 1>{"I64"});
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::int64_t stored = 0;
    std::memcpy(&stored, view.bytes.data() + i * sizeof stored, sizeof stored);
    if (stored != expected[i]) {
      throw Error(fmt::format("{}: {}: entry {} is {}, but config.json's seed and sizes give {}", view.file, view.name,
                              i, stored, expected[i]));
    }
  }
}

/// One part of the table: FP8 with the scale of the whole table, or bf16 or f32 without one. The part's own number of
/// rows is what its shape says.
StoredMatrix find_part(const Qwen4ExpTensors& tensors, const std::string& name, std::int64_t width) {
  const std::string scale_name = tensors.prefix + "weight_scale";
  const TensorView* view = tensors.checkpoint.find(tensors.prefix + name);
  const std::int64_t n_rows = view != nullptr && view->shape.size() == 2 ? view->shape[0] : 0;
  const TensorView& weight = tensors.checkpoint.require(tensors.prefix + name, std::array{n_rows, width},
                                                        std::array<std::string_view, 3>{"BF16", "F32", "F8_E4M3"});
  StoredMatrix part{&weight, nullptr, n_rows, width};
  const bool has_scale = tensors.checkpoint.find(scale_name) != nullptr;
  if (weight.dtype == "F8_E4M3") {
    part.scale = read_scalar(tensors.checkpoint, scale_name);
  } else if (has_scale) {
    throw Error(fmt::format("{}: {}: {} beside {}, which only an FP8 table has", weight.file, weight.name, weight.dtype,
                            scale_name));
  }
  return part;
}

/// The whole table, or its shards in the order of their numbers.
std::vector<StoredMatrix> find_table(const Qwen4ExpTensors& tensors, std::int64_t n_rows, std::int64_t width) {
  const auto has = [&](const std::string& name) { return tensors.checkpoint.find(tensors.prefix + name) != nullptr; };
  const auto shard = [](std::size_t k) { return fmt::format("shard_{}.weight", k); };
  std::vector<StoredMatrix> parts;
  if (has(shard(0)) && has("weight")) {
    throw Error(fmt::format("{}weight: the table is there twice, whole and in shards", tensors.prefix));
  }
  if (!has(shard(0))) parts.push_back(find_part(tensors, "weight", width));
  while (has(shard(parts.size())) && !has("weight")) parts.push_back(find_part(tensors, shard(parts.size()), width));
  std::int64_t n_found = 0;
  for (const StoredMatrix& part : parts) n_found += part.n_rows;
  if (n_found != n_rows) {
    throw Error(
        fmt::format("{}: {} parts of the table hold {} rows, expected {} (from config.json): a shard is missing "
                    "or the table is another's",
                    tensors.prefix, parts.size(), n_found, n_rows));
  }
  return parts;
}

/// Rows `ids` of the table, one behind the other: [ids.size(), width].
at::Tensor load_table_rows(const std::vector<StoredMatrix>& shards, std::span<const std::int64_t> ids,
                           at::ScalarType dtype) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(ids.size()), shards.front().n_cols}, dtype);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::int64_t row = ids[i];
    auto shard = shards.begin();
    for (; row >= shard->n_rows; ++shard) row -= shard->n_rows;
    load_to(*shard, row, out.narrow(0, static_cast<std::int64_t>(i), 1));
  }
  for (const StoredMatrix& shard : shards) drop_rows(shard, 0, shard.n_rows);
  return out;
}

/// Points 1 and 2: sigmoid(sign(g) sqrt(max(|g|, 1e-6))) with g = kappa . phi / sqrt(H). kappa, phi [T, C, H] ->
/// [T, C, 1].
at::Tensor gate(const Rounding& r, const at::Tensor& kappa, const at::Tensor& phi) {
  const at::Tensor g = r(r((kappa * phi).sum(2, /*keepdim=*/true)) / std::sqrt(static_cast<double>(phi.size(2))));
  return r(at::sigmoid(r(at::sign(g) * at::sqrt(at::clamp_min(at::abs(g), 1e-6)))));
}

}  // namespace

Ngram find_ngram(const Qwen4ExpTensors& tensors, std::int64_t module) {
  const Qwen4ExpConfig& c = tensors.config;
  const std::int64_t width = c.hc_count * c.hidden_size;
  Ngram ngram;
  ngram.key_proj = tensors.matrix("key_proj.weight", width, c.ple_embed_dim);
  ngram.value_proj = tensors.matrix("value_proj.weight", c.hidden_size, c.ple_embed_dim);
  ngram.norm_key = tensors.vector("norm_key.weight", width);
  ngram.norm_query = tensors.vector("norm_query.weight", width);
  ngram.norm_conv = tensors.vector("norm_conv.weight", width);
  ngram.conv1d = tensors.taps("conv1d.weight", width, c.ple_conv_kernel_size);
  ngram.hash = make_ngram_hash(c, module);
  const Qwen4ExpTensors embedding = tensors.below("ple_embedding.");
  check_constants(embedding, "layer_multipliers", ngram.hash.multipliers);
  check_constants(embedding, "ngram_heads_vocab_sizes", ngram.hash.sizes);
  check_constants(embedding, "ngram_heads_offsets", ngram.hash.offsets);
  ngram.shards =
      find_table(embedding.below("ngram_embedding."), ngram.hash.n_table_rows, c.ple_embed_dim / c.n_ngram_heads());
  ngram.dilation = c.ngram_size;
  ngram.n_streams = c.hc_count;
  ngram.eps = c.rms_norm_eps;
  return ngram;
}

at::Tensor run_ngram(const Rounding& r, const Ngram& ngram, const at::Tensor& streams, std::span<const Prompt> prompts,
                     const Record& record) {
  const std::int64_t n_rows = streams.size(0);
  std::vector<std::int64_t> table_rows;
  for (const Prompt& prompt : prompts) {
    const std::vector<std::int64_t> rows = ngram_rows(ngram.hash, prompt.tokens);
    table_rows.insert(table_rows.end(), rows.begin(), rows.end());
  }
  const at::Tensor e = r(load_table_rows(ngram.shards, table_rows, r.dtype())).view({n_rows, -1});
  const at::Tensor kappa = norm_streams(r, r(r.linear(ngram.key_proj)(e)), ngram.norm_key, ngram.n_streams, ngram.eps);
  const at::Tensor phi = norm_streams(r, streams, ngram.norm_query, ngram.n_streams, ngram.eps);
  const at::Tensor v = r(r.linear(ngram.value_proj)(e)).unsqueeze(1);
  const at::Tensor gated = r(gate(r, kappa, phi) * v).flatten(1);  // G [N, C * H]
  const at::Tensor normed = norm_streams(r, gated, ngram.norm_conv, ngram.n_streams, ngram.eps).flatten(1);
  const at::Tensor conv1d = r.load(ngram.conv1d);
  at::Tensor y = at::empty_like(gated);
  for (const Prompt& prompt : prompts) {
    y.slice(0, prompt.first_row, prompt.end_row())
        .copy_(causal_conv(normed.slice(0, prompt.first_row, prompt.end_row()), conv1d, ngram.dilation));
  }
  const at::Tensor out = r(gated + r(at::silu(y)));
  record("ngram_rows", 0, at::tensor(table_rows, at::kLong).view({n_rows, -1}));
  record("ngram_embedding", 0, e);
  record("ple_out", 0, out);
  return out;
}

}  // namespace kalibri::reference
