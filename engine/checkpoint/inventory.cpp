#include "engine/checkpoint/inventory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "engine/base/error.hpp"
#include "engine/checkpoint/json.hpp"

namespace kalibri::checkpoint {

namespace {

constexpr std::array<std::string_view, 9> kKindNames = {"embedding",     "head", "attention", "router", "expert",
                                                        "shared expert", "norm", "scale",     "other"};

std::string kolibri1_summary(const Kolibri1Config& c) {
  const auto n_sliding = std::count(c.layer_is_sliding.begin(), c.layer_is_sliding.end(), true);
  return fmt::format(
      "{} layers ({} sliding, window {}), hidden {}, heads {}/{} of {}, {} experts of {}, top {}, vocabulary {}",
      c.num_hidden_layers, n_sliding, c.sliding_window, c.hidden_size, c.num_attention_heads, c.num_key_value_heads,
      c.head_dim, c.num_experts, c.moe_intermediate_size, c.num_experts_per_tok, c.vocab_size);
}

/// The names that a note is about: how many, and the first of them.
class Names {
 public:
  void add(std::string_view name) {
    if (n_++ == 0) first_ = name;
  }
  void note(std::vector<std::string>& notes, std::string_view text) const {
    if (n_ == 1) notes.push_back(fmt::format("{}: {}", first_, text));
    if (n_ > 1) notes.push_back(fmt::format("{} and {} more: {}", first_, n_ - 1, text));
  }

 private:
  std::int64_t n_ = 0;
  std::string first_;
};

/// Whether `modules` has the tensor's module or one that contains it.
bool lists_module(const std::set<std::string, std::less<>>& modules, std::string_view tensor) {
  for (auto dot = tensor.rfind('.'); dot != tensor.npos && dot > 0; dot = tensor.rfind('.', dot - 1)) {
    if (modules.contains(tensor.substr(0, dot))) return true;
  }
  return false;
}

/// Where quantization_config tells another story than the tensors' dtypes, which decide.
void note_quantisation(const Checkpoint& checkpoint, const Kolibri1Config& config,
                       const std::vector<ExpectedTensor>& expected, std::vector<std::string>& notes) {
  const std::set<std::string, std::less<>> modules(config.modules_to_not_convert.begin(),
                                                   config.modules_to_not_convert.end());
  Names undeclared;
  Names listed;
  Names unlisted;
  for (const ExpectedTensor& weight : expected) {
    const TensorView* tensor = checkpoint.find(weight.name);
    if (tensor == nullptr) continue;
    const bool is_fp8 = tensor->dtype == Dtype::f8_e4m3;
    const bool is_listed = lists_module(modules, weight.name);
    if (is_fp8 && !config.has_quantization_config) undeclared.add(weight.name);
    if (is_fp8 && is_listed) listed.add(weight.name);
    if (!is_fp8 && weight.may_be_fp8 && config.has_quantization_config && !is_listed) unlisted.add(weight.name);
  }
  undeclared.note(notes, "F8_E4M3 though config.json has no quantization_config; the stored dtype decides");
  listed.note(notes, "F8_E4M3 though listed in modules_to_not_convert; the stored dtype decides");
  unlisted.note(notes, "not F8_E4M3 though not listed in modules_to_not_convert; the stored dtype decides");
}

void note_files(const Checkpoint& checkpoint, std::vector<std::string>& notes) {
  std::set<std::string> shards;
  std::int64_t n_data_bytes = 0;
  for (const SafetensorsFile& shard : checkpoint.shards()) {
    shards.insert(shard.path().filename().string());
    n_data_bytes += static_cast<std::int64_t>(shard.data().size());
  }
  if (checkpoint.index_total_size() && *checkpoint.index_total_size() != n_data_bytes) {
    notes.push_back(fmt::format("index: total_size {}, the shards hold {} data bytes", *checkpoint.index_total_size(),
                                n_data_bytes));
  }
  std::set<std::string> aside;
  std::error_code unreadable;  // then there is nothing to note
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint.directory(), unreadable)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") && !shards.contains(name)) aside.insert(name);
  }
  if (!aside.empty()) notes.push_back(fmt::format("not part of the checkpoint: {}", fmt::join(aside, ", ")));
}

void count(Inventory& inventory, TensorKind kind, const TensorView& tensor) {
  KindSum& sum = inventory.kinds[kind];
  ++sum.n_tensors;
  sum.n_elements += tensor.n_elements();
  sum.n_bytes += static_cast<std::int64_t>(tensor.bytes.size());
  sum.dtypes.insert(tensor.dtype);
}

std::optional<Problem> find_problem(const Checkpoint& checkpoint, const ExpectedTensor& expected, bool check_values) {
  if (expected.shape.size() != 2) return checkpoint.small_tensor_problem(expected.name, expected.shape);
  const TensorView* tensor = checkpoint.find(expected.name);
  if (tensor != nullptr && tensor->dtype == Dtype::f8_e4m3 && !expected.may_be_fp8) {
    return Problem{tensor->file->path().filename().string(), expected.name, "dtype F8_E4M3, expected BF16 or F32"};
  }
  return checkpoint.matrix_problem(expected.name, expected.shape[0], expected.shape[1], check_values);
}

}  // namespace

std::string_view tensor_kind_name(TensorKind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

std::int64_t Inventory::n_parameters() const {
  std::int64_t n = 0;
  for (const auto& [kind, sum] : kinds) {
    if (kind != TensorKind::scale && kind != TensorKind::other) n += sum.n_elements;
  }
  return n;
}

Inventory take_inventory(const Checkpoint& checkpoint, bool check_values) {
  const std::string where = (checkpoint.directory() / "config.json").string();
  const auto model_type = checkpoint.config().find("model_type");
  if (model_type == checkpoint.config().end() || !model_type->is_string()) {
    throw Error(ErrorCode::config,
                fmt::format("{}: model_type: missing or no string; is this a model's folder?", where));
  }
  if (*model_type != "kolibri1") {
    throw Error(ErrorCode::config, fmt::format("{}: model_type: '{}', expected kolibri1", where,
                                               printable(model_type->get_ref<const std::string&>())));
  }
  const Kolibri1Config config = Kolibri1Config::from_json(checkpoint.config(), where);
  const std::vector<ExpectedTensor> expected = kolibri1_tensors(config);

  Inventory inventory;
  inventory.model_type = model_type->get<std::string>();
  inventory.summary = kolibri1_summary(config);
  std::set<const TensorView*> known;
  for (const ExpectedTensor& weight : expected) {
    if (auto problem = find_problem(checkpoint, weight, check_values))
      inventory.problems.push_back(std::move(*problem));
    const TensorView* tensor = checkpoint.find(weight.name);
    if (tensor == nullptr) continue;
    known.insert(tensor);
    count(inventory, weight.kind, *tensor);
    if (tensor->dtype != Dtype::f8_e4m3) continue;
    if (const TensorView* scale = checkpoint.find(scale_name(weight.name))) {
      known.insert(scale);
      count(inventory, TensorKind::scale, *scale);
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (known.contains(tensor)) continue;
    inventory.unexpected.push_back(printable(name));
    count(inventory, TensorKind::other, *tensor);
  }

  if (!config.unknown_keys.empty()) {
    inventory.notes.push_back(
        fmt::format("config.json: keys not known here: {}", fmt::join(config.unknown_keys, ", ")));
  }
  note_quantisation(checkpoint, config, expected, inventory.notes);
  note_files(checkpoint, inventory.notes);
  return inventory;
}

}  // namespace kalibri::checkpoint
