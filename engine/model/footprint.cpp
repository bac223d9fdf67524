#include "engine/model/footprint.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/error.hpp"
#include "engine/checkpoint/family.hpp"
#include "engine/checkpoint/tensor_places.hpp"
#include "engine/model/session_footprint.hpp"
#include "engine/model/swiglu_weights.hpp"
#include "engine/model/weight_places.hpp"
#include "engine/runtime/expert_source.hpp"
#include "engine/runtime/formed_matrix.hpp"
#include "engine/runtime/linear.hpp"
#include "engine/runtime/weight_forms.hpp"

namespace kalibri::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpectedTensor;
using checkpoint::Storage;
using checkpoint::TensorKind;
using kernels::Format;
using kernels::MatrixView;
using runtime::ExpertWeights;
using runtime::ProductRoom;
using runtime::WeightForm;

// What a checkpoint and a model with an expert cache remember of each, in bytes (measured; the test says so when they
// change).
constexpr std::int64_t kTensorIndex = 328;
constexpr std::int64_t kExpertIndex = 560;

std::int64_t n_blocks(std::int64_t n) { return (n + kernels::kFp8Block - 1) / kernels::kFp8Block; }

std::int64_t scale_bytes(const MatrixView& w) {
  if (w.format == Format::e4m3_block) return n_blocks(w.n_rows) * n_blocks(w.n_cols) * std::int64_t{sizeof(float)};
  return w.format == Format::affine ? 2 * w.n_rows * kernels::grid_row_bytes(w) : 0;
}

std::int64_t with_scales(const MatrixView& w) { return kernels::stored_bytes(w) + scale_bytes(w); }

std::int64_t n_elements(const MatrixView& w) { return w.n_rows * w.n_cols; }

std::int64_t n_elements(const ExpectedTensor& tensor) {
  std::int64_t n = 1;
  for (const std::int64_t size : tensor.shape) n *= size;
  return n;
}

/// The experts' matrices, each three of them one expert, in the order of the list.
std::vector<ExpertWeights> find_experts(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& tensors) {
  std::vector<ExpertWeights> experts;
  for (auto t = tensors.begin(); t != tensors.end();) {
    if (t->kind != TensorKind::expert) {
      ++t;
    } else if (t->shape.size() == 2) {  // gate, up, down
      experts.push_back({find_matrix(checkpoint, t[0]), find_matrix(checkpoint, t[1]), find_matrix(checkpoint, t[2])});
      t += 3;
    } else {
      const bool is_fused = t->name.ends_with("gate_up_proj");
      for (std::int64_t e = 0; e < t->shape[0]; ++e) {
        const auto stacked = [&](const ExpectedTensor& stack) {
          return checkpoint.stacked_matrix(stack.name, stack.shape[0], stack.shape[1], stack.shape[2], e, false);
        };
        if (is_fused) {
          const MatrixView gate_up = stacked(t[0]);
          const std::int64_t width = gate_up.n_rows / 2;
          experts.push_back(
              {kernels::rows_of(gate_up, 0, width), kernels::rows_of(gate_up, width, width), stacked(t[1])});
        } else {
          experts.push_back({stacked(t[0]), stacked(t[1]), stacked(t[2])});
        }
      }
      t += is_fused ? 2 : 3;
    }
  }
  return experts;
}

/// Sums over the weights, and the room that products take.
class WeightSums {
 public:
  WeightSums(const Checkpoint& checkpoint, const FootprintOptions& options, std::int64_t chunk, Footprint& sums)
      : checkpoint_(checkpoint),
        places_(checkpoint),
        options_(options),
        chunk_(chunk),
        forms_(options.precision),
        sums_(sums) {}

  void add(const std::vector<ExpectedTensor>& tensors) {
    classify_weights(checkpoint_, tensors, forms_);
    bool has_head = false;
    for (const ExpectedTensor& tensor : tensors) {
      add(tensor);
      has_head = has_head || tensor.kind == TensorKind::head;
    }
    for (const ExpectedTensor& tensor : tensors) {  // one matrix for both
      if (!has_head && tensor.kind == TensorKind::embedding) add_matrix(find_matrix(checkpoint_, tensor), true);
    }
    const std::vector<ExpertWeights> experts = find_experts(checkpoint_, tensors);
    for (const ExpertWeights& expert : experts) add(expert);
    sums_.index_bytes = static_cast<std::int64_t>(checkpoint_.tensors().size()) * kTensorIndex +
                        static_cast<std::int64_t>(experts.size()) * kExpertIndex;
  }

  /// Of all threads.
  [[nodiscard]] std::int64_t product_bytes() const {
    const std::size_t scratch = std::max(dense_.scratch, expert_.packed + expert_.scratch);
    return static_cast<std::int64_t>((dense_.packed + static_cast<std::size_t>(options_.n_threads) * scratch) *
                                     sizeof(float));
  }

 private:
  void add(const ExpectedTensor& tensor) {
    const checkpoint::TensorView* stored = checkpoint_.find(tensor.name);
    switch (tensor.kind) {
      case TensorKind::expert:
      case TensorKind::scale:
      case TensorKind::constant:
        return;
      case TensorKind::ngram_table:
        if (stored == nullptr) checkpoint_.refuse({"", tensor.name, "missing, expected a part of the n-gram table"});
        sums_.table_bytes += static_cast<std::int64_t>(stored->bytes.size());
        return;
      case TensorKind::embedding:
        sums_.embedding_bytes += with_scales(find_matrix(checkpoint_, tensor));
        return;
      default:
        break;
    }
    if (tensor.shape.size() == 2) {
      add_matrix(find_matrix(checkpoint_, tensor), tensor.kind == TensorKind::head);
    } else {
      const auto problem = tensor.storage == Storage::f32 ? checkpoint_.f32_problem(tensor.name, tensor.shape)
                                                          : checkpoint_.small_tensor_problem(tensor.name, tensor.shape);
      if (problem) checkpoint_.refuse(*problem);
      sums_.vector_bytes += n_elements(tensor) * std::int64_t{sizeof(float)};
    }
  }

  /// Of the head a call needs the last tokens alone.
  void add_matrix(const MatrixView& stored, bool is_head) {
    const WeightForm form = forms_.form_of(stored);
    const bool is_stored_so = form.kind == WeightForm::Kind::native;
    const std::int64_t n_bytes = is_stored_so ? with_scales(stored) : runtime::formed_bytes(form, stored);
    (is_stored_so ? sums_.mapped_bytes : sums_.made_bytes) += n_bytes;
    if (is_head) sums_.head_bytes += n_bytes;
    (is_head ? sums_.n_head_weights : sums_.n_always_weights) += n_elements(stored);
    widen(dense_, is_stored_so ? stored : runtime::formed_view(form, stored, nullptr), is_head ? 1 : chunk_);
  }

  void add(const ExpertWeights& expert) {
    std::int64_t n_bytes = 0;
    std::int64_t n_stored = 0;
    std::int64_t n_scales = 0;
    std::int64_t n_weights = 0;
    for (const MatrixView& stored : {expert.gate, expert.up, expert.down}) {
      const WeightForm form = form_for(options_.precision.experts, stored);
      const bool is_stored_so = form.kind == WeightForm::Kind::native;
      sums_.makes_experts = sums_.makes_experts || !is_stored_so;
      n_bytes += is_stored_so ? with_scales(stored) : runtime::formed_bytes(form, stored);
      n_stored += with_scales(stored);
      if (stored.format == Format::e4m3_block) n_scales += scale_bytes(stored);
      n_weights += n_elements(stored);
      widen(expert_, is_stored_so ? stored : runtime::formed_view(form, stored, nullptr), chunk_);
    }
    sums_.expert_bytes = std::max(sums_.expert_bytes, n_bytes);
    sums_.stored_expert_bytes = std::max(sums_.stored_expert_bytes, n_stored);
    sums_.all_expert_bytes += n_stored;
    sums_.scale_bytes += n_scales;
    sums_.n_expert_weights = std::max(sums_.n_expert_weights, n_weights);
    const runtime::ExpertSource source(expert, places_);
    sums_.slot_bytes = std::max(sums_.slot_bytes, static_cast<std::int64_t>(source.slot_bytes()));
  }

  void widen(ProductRoom& room, const MatrixView& w, std::int64_t n_tokens) const {
    const ProductRoom other = product_room(options_.precision.arithmetic, w, n_tokens);
    room = {std::max(room.packed, other.packed), std::max(room.scratch, other.scratch)};
  }

  const Checkpoint& checkpoint_;
  checkpoint::TensorPlaces places_;
  const FootprintOptions& options_;
  std::int64_t chunk_;
  runtime::WeightForms forms_;
  Footprint& sums_;
  ProductRoom dense_, expert_;
};

/// What both families' configurations call alike.
template <typename Config>
void measure(const Checkpoint& checkpoint, const Config& config, const std::vector<ExpectedTensor>& tensors,
             const FootprintOptions& options, Footprint& sums) {
  sums.n_layers = config.num_hidden_layers;
  sums.n_experts = config.num_experts;
  sums.top_k = config.num_experts_per_tok;
  sums.max_positions = config.max_position_embeddings;
  sums.context =
      options.context == 0 ? std::min(sums.max_positions, FootprintOptions::kDefaultContext) : options.context;
  if (sums.context < 1 || sums.context > sums.max_positions) {
    throw Error(ErrorCode::usage, "a context of " + std::to_string(sums.context) + " tokens: expected 1 to " +
                                      std::to_string(sums.max_positions) + " (config.json max_position_embeddings)");
  }
  const std::int64_t chunk = std::min(options.chunk, sums.context);
  if (chunk < 1) throw Error(ErrorCode::usage, "a chunk holds at least one token");
  WeightSums weights(checkpoint, options, chunk, sums);
  weights.add(tensors);
  const SessionFootprint session =
      session_footprint(config, {.context = sums.context, .chunk = chunk, .n_threads = options.n_threads});
  sums.state_bytes = session.state_bytes;
  sums.token_bytes = session.token_bytes;
  sums.touched_bytes = session.touched_bytes;
  sums.workspace_bytes = session.buffer_bytes + weights.product_bytes();
}

}  // namespace

Footprint footprint(const Checkpoint& checkpoint, const FootprintOptions& options) {
  Footprint sums;
  const std::string name = checkpoint::model_type(checkpoint);
  const std::string where = (checkpoint.directory() / "config.json").string();
  if (name == "kolibri1") {
    sums.model_type = name;
    const auto config = checkpoint::Kolibri1Config::from_json(checkpoint.config(), where);
    const auto layout = checkpoint::find_kolibri1_layout(checkpoint);
    measure(checkpoint, config, checkpoint::kolibri1_tensors(config, layout), options, sums);
  } else if (name == "qwen4_exp" || name == "qwen4_exp_text") {
    sums.model_type = "qwen4_exp";
    const auto config = checkpoint::Qwen4ExpConfig::from_json(checkpoint.config(), where);
    const auto layout = checkpoint::find_qwen4_exp_layout(checkpoint, config);
    measure(checkpoint, config, checkpoint::qwen4_exp_tensors(config, layout), options, sums);
  } else {
    checkpoint::refuse_model_type(checkpoint);
  }
  return sums;
}

}  // namespace kalibri::model
