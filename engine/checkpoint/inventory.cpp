#include "engine/checkpoint/inventory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "engine/checkpoint/affine_weight.hpp"
#include "engine/checkpoint/json.hpp"
#include "engine/checkpoint/values.hpp"

namespace kalibri::checkpoint {

namespace {

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
void note_quantisation(const Checkpoint& checkpoint, const Family& family, std::vector<std::string>& notes) {
  if (!family.lists_modules) return;
  const std::set<std::string, std::less<>> modules(family.modules_to_not_convert.begin(),
                                                   family.modules_to_not_convert.end());
  Names undeclared;
  Names listed;
  Names unlisted;
  for (const ExpectedTensor& weight : family.tensors) {
    const TensorView* tensor = checkpoint.find(weight.name);
    if (tensor == nullptr) continue;
    const bool is_fp8 = tensor->dtype == Dtype::f8_e4m3;
    const bool is_listed = lists_module(modules, weight.name);
    if (is_fp8 && !family.declares_fp8) undeclared.add(weight.name);
    if (is_fp8 && is_listed) listed.add(weight.name);
    if (!is_fp8 && weight.storage == Storage::matrix && family.declares_fp8 && !is_listed) unlisted.add(weight.name);
  }
  undeclared.note(notes, "F8_E4M3 though config.json has no quantization_config; the stored dtype decides");
  listed.note(notes, "F8_E4M3 though listed in modules_to_not_convert; the stored dtype decides");
  unlisted.note(notes, "not F8_E4M3 though not listed in modules_to_not_convert; the stored dtype decides");
}

/// mlx-lm cannot load a directory whose config.json gives a format to a module that is not stored in it.
void note_affine_modules(const Checkpoint& checkpoint, std::vector<std::string>& notes) {
  if (!checkpoint.affine()) return;
  Names without_scales;
  for (const auto& [module, format] : checkpoint.affine()->modules()) {
    if (format && checkpoint.find(module + ".scales") == nullptr) without_scales.add(printable(module));
  }
  without_scales.note(notes, "config.json's quantization gives it a format, but it has no scales; mlx-lm refuses that");
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

/// n_elements: what the tensor stands for; of packed codes more than its words.
void count(KindSum& sum, const TensorView& tensor, std::int64_t n_elements) {
  ++sum.n_tensors;
  sum.n_elements += n_elements;
  sum.n_bytes += static_cast<std::int64_t>(tensor.bytes.size());
  sum.dtypes.insert(tensor.dtype);
}
void count(KindSum& sum, const TensorView& tensor) { count(sum, tensor, tensor.n_elements()); }

std::int64_t product(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

/// Tensors that belong to a weight: FP8's scales, packed codes' scales and biases.
std::vector<std::string> parts_of(const Checkpoint& checkpoint, const ExpectedTensor& weight) {
  const bool may_be_packed = weight.storage == Storage::matrix || weight.storage == Storage::unscaled;
  if (may_be_packed && is_affine(checkpoint, weight.name)) {
    return {affine_scales_name(weight.name), affine_biases_name(weight.name)};
  }
  const bool is_fp8 = checkpoint.find(weight.name)->dtype == Dtype::f8_e4m3;
  if (weight.storage == Storage::matrix && is_fp8) return {scale_name(weight.name)};
  return {};
}

/// A table of rows of one size; how many there are is the family's business.
std::optional<Problem> rows_problem(const Checkpoint& checkpoint, const ExpectedTensor& expected) {
  const std::int64_t row_size = expected.shape.front();
  const TensorView* tensor = checkpoint.find(expected.name);
  if (tensor == nullptr) return Problem{"", expected.name, fmt::format("missing, expected [rows, {}]", row_size)};
  const std::string file = tensor->file->path().filename().string();
  if (tensor->shape.size() != 2 || tensor->shape[1] != row_size) {
    return Problem{file, expected.name,
                   fmt::format("shape {}, expected [rows, {}] (config.json)", shape_text(tensor->shape), row_size)};
  }
  if (tensor->dtype == Dtype::f8_e4m3 || tensor->dtype == Dtype::bf16 || tensor->dtype == Dtype::f32) return {};
  return Problem{file, expected.name,
                 fmt::format("dtype {}, expected F8_E4M3, BF16 or F32", dtype_name(tensor->dtype))};
}

std::optional<Problem> find_problem(const Checkpoint& checkpoint, const ExpectedTensor& expected, bool check_values) {
  switch (expected.storage) {
    case Storage::unscaled:
      return checkpoint.unscaled_problem(expected.name, expected.shape, check_values);
    case Storage::matrix:
      return checkpoint.matrix_problem(expected.name, expected.shape[0], expected.shape[1], check_values);
    case Storage::rows:
      return rows_problem(checkpoint, expected);
    case Storage::f32:
      return checkpoint.f32_problem(expected.name, expected.shape);
    case Storage::scalar:
      return checkpoint.scalar_problem(expected.name);
    case Storage::integers:
      return checkpoint.integers_problem(expected.name, expected.shape[0]);
    case Storage::plain:
      break;
  }
  return checkpoint.small_tensor_problem(expected.name, expected.shape);
}

/// Of a tensor that is otherwise right.
std::optional<Problem> value_problem(const std::string& name, const TensorView& tensor) {
  const std::int64_t index = find_not_finite(tensor);
  if (index < 0) return {};
  return Problem{tensor.file->path().filename().string(), name,
                 fmt::format("NaN or infinity at {}, expected numbers", index_text(index, tensor.shape))};
}

/// The tensors that no entry of the family names: known and left alone, or not known.
void sort_others(const Checkpoint& checkpoint, const Family& family, const std::set<const TensorView*>& known,
                 Inventory& inventory) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (known.contains(tensor)) continue;
    const auto prefix = std::find_if(family.left_alone.begin(), family.left_alone.end(),
                                     [&name = name](const std::string& start) { return name.starts_with(start); });
    if (prefix != family.left_alone.end()) {
      count(inventory.left_alone[*prefix], *tensor);
      count(inventory.kinds[TensorKind::left_alone], *tensor);
    } else {
      inventory.unexpected.push_back(printable(name));
      count(inventory.kinds[TensorKind::other], *tensor);
    }
  }
}

}  // namespace

std::int64_t Inventory::n_parameters() const {
  std::int64_t n = 0;
  for (const auto& [kind, sum] : kinds) {
    if (kind < TensorKind::scale) n += sum.n_elements;
  }
  return n;
}

Inventory take_inventory(const Checkpoint& checkpoint, bool check_values) {
  const Family family = find_family(checkpoint);
  Inventory inventory;
  inventory.model_type = family.model_type;
  inventory.summary = family.summary;
  std::set<const TensorView*> known;
  for (const ExpectedTensor& expected : family.tensors) {
    auto problem = find_problem(checkpoint, expected, check_values);
    const TensorView* tensor = checkpoint.find(expected.name);
    if (!problem && check_values) problem = value_problem(expected.name, *tensor);
    if (problem) inventory.problems.push_back(std::move(*problem));
    if (tensor == nullptr) continue;
    known.insert(tensor);
    const bool is_packed = tensor->dtype == Dtype::u32 && is_affine(checkpoint, expected.name);
    count(inventory.kinds[expected.kind], *tensor, is_packed ? product(expected.shape) : tensor->n_elements());
    for (const std::string& name : parts_of(checkpoint, expected)) {
      const TensorView* part = checkpoint.find(name);
      if (part == nullptr) continue;
      known.insert(part);
      count(inventory.kinds[TensorKind::scale], *part);
    }
  }
  inventory.problems.insert(inventory.problems.end(), family.problems.begin(), family.problems.end());
  sort_others(checkpoint, family, known, inventory);

  if (!family.unknown_keys.empty()) {
    inventory.notes.push_back(
        fmt::format("config.json: keys not known here: {}", fmt::join(family.unknown_keys, ", ")));
  }
  if (!family.defaults_used.empty()) {
    inventory.notes.push_back(fmt::format("config.json: defaults used: {}", fmt::join(family.defaults_used, ", ")));
  }
  note_quantisation(checkpoint, family, inventory.notes);
  note_affine_modules(checkpoint, inventory.notes);
  note_files(checkpoint, inventory.notes);
  return inventory;
}

}  // namespace kalibri::checkpoint
