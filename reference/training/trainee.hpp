// A model under training: its parameters, its forward pass over packed rows with gradients, and how it is exported. A
// family is one file that fills this in; optimiser, files and loop know no family. Everything here is written for rows
// of a batch, where the reference computes one prompt; a test holds the two against each other.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/training/batches.hpp"
#include "reference/training/layout.hpp"

namespace kalibri::reference::training {

/// All parameters in one flat tensor and their gradients in another, and views of both by name.
class Weights {
 public:
  Weights(const ParameterTable& table, at::ScalarType dtype);

  /// A leaf whose gradient is added to grads().
  [[nodiscard]] const at::Tensor& operator[](const std::string& name) const { return views_.at(name); }
  [[nodiscard]] at::Tensor values() const { return values_; }
  [[nodiscard]] at::Tensor grads() const { return grads_; }

 private:
  at::Tensor values_, grads_;
  std::map<std::string, at::Tensor> views_;
};

/// Draws the initial values: parameter i of a table has a stream of its own.
void initialise(const ParameterTable& table, std::uint64_t seed, const at::Tensor& values);

/// What is chosen rather than computed: experts, and the blocks of sparse attention. Recorded in a forward pass, and
/// taken from there in others when `replay`: so that a gradient is that of a smooth function.
struct Choices {
  bool replay = false;
  std::vector<at::Tensor> expert_ids;  // [N, k], by layer
  std::vector<at::Tensor> blocks;      // kept blocks, by sparse layer

  /// `fresh`, recorded, or the next recorded one.
  at::Tensor choose(std::vector<at::Tensor>& list, std::size_t index, const std::function<at::Tensor()>& fresh);
};

/// What depends on how far the training is.
struct Phase {
  bool is_sparse = true;    // sparse attention keeps the indexer's choice, else everything
  double index_weight = 1;  // of the indexer's divergence from dense attention in the loss
};

struct Outputs {
  at::Tensor logits;     // [N, V]
  at::Tensor auxiliary;  // what is added to the loss; undefined for nothing
};

struct Trainee {
  std::string model_type;
  Layout layout;
  std::int64_t vocab_size = 0;
  std::int64_t n_experts = 0;
  std::int64_t alignment = 1;           // of documents in a row
  std::vector<std::string> bias_names;  // of expert biases that are set by load, by layer; none when there are none
  std::function<Outputs(const Weights&, const Batch&, const Phase&, Choices&)> forward;
  std::function<void(const Weights&)> shape_first_weights;  // after they were drawn; none when there is nothing to do
};

/// "nano" is the model to release, "tiny" the one of the tests. Throws Error for other names.
Trainee make_trainee(const std::string& model_type, const std::string& size);

/// Mean cross entropy of the targets.
at::Tensor target_loss(const at::Tensor& logits, const Batch& batch);

/// Helpers of both families.
at::Tensor ids_tensor(const Batch& batch);                               // [N]
at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight);  // x W^T over the last axis
at::Tensor swiglu(const at::Tensor& x, const Weights& w, const std::string& prefix);
/// softmax(q k / sqrt(D)) without the masked keys. q [B, T, heads, D], k and v [B, T', kv_heads, D], masked
/// [B, T, T'] bool -> context [B, T, heads, D]. `probabilities`, if given, takes [B, kv_heads, repeats, T, T'].
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& masked,
                            at::Tensor* probabilities = nullptr);
/// Keys that a token may not see [B, T, T]: later ones and other documents'.
at::Tensor mask_of(const Batch& batch);

Trainee make_kolibri1_trainee(bool nano);
Trainee make_qwen4_exp_trainee(bool nano);

}  // namespace kalibri::reference::training
