// The n-gram layer (PLE): rows of a large table, chosen by a hash of the last tokens, gated into the streams. The table
// stays in its files; only the rows that the prompts need are read. Source: transformers,
// modeling_qwen4_exp.py, n-gram embedding.
#pragma once

#include "reference/model.hpp"
#include "reference/ngram_hash.hpp"
#include "reference/qwen4_exp_tensors.hpp"
#include "reference/tensor.hpp"

namespace kalibri::reference {

struct Ngram {
  NgramHash hash;
  std::vector<StoredMatrix> shards;              // of the table [hash.n_table_rows, ple_embed_dim / heads], in order
  StoredMatrix key_proj;                         // [C * H, ple]
  StoredMatrix value_proj;                       // [H, ple]
  StoredMatrix norm_key, norm_query, norm_conv;  // [C * H]
  StoredMatrix conv1d;                           // [C * H, K]
  std::int64_t dilation = 0;
  std::int64_t n_streams = 0;
  double eps = 0;
};

/// n-gram layer number `module` of the model. Constants that the checkpoint holds must equal the computed ones.
Ngram find_ngram(const Qwen4ExpTensors& tensors, std::int64_t module);

/// What the layer adds to streams [N, C * H]; records ngram_rows, ngram_embedding and ple_out.
at::Tensor run_ngram(const Rounding& r, const Ngram& ngram, const at::Tensor& streams, std::span<const Prompt> prompts,
                     const Record& record);

}  // namespace kalibri::reference
