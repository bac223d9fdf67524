#include "engine/checkpoint/convert_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/error.hpp"
#include "engine/checkpoint/affine_weight.hpp"
#include "engine/checkpoint/inventory.hpp"

namespace kalibri::checkpoint {

namespace {

using kernels::MatrixView;
using nlohmann::ordered_json;

constexpr std::int64_t kElementsPerJob = 1 << 20;
constexpr std::string_view kStack = "mlp.switch_mlp.";

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

/// config.json's object that has the text model's keys.
ordered_json& text_config(ordered_json& config) {
  return config.contains("text_config") ? config["text_config"] : config;
}

/// config.json as the output has it, but for the quantization block.
ordered_json output_config(const Checkpoint& checkpoint, const ConvertOptions& options) {
  auto config = ordered_json::parse(checkpoint.config_bytes());
  config.erase("quantization_config");
  if (!options.n_layers) return config;
  ordered_json& text = text_config(config);
  const std::int64_t n_all = text.value("num_hidden_layers", std::int64_t{0});
  const std::int64_t n = *options.n_layers;
  if (n < 1 || n > n_all) {
    throw Error(ErrorCode::usage, fmt::format("--layers: {}, expected 1 to {} (num_hidden_layers)", n, n_all));
  }
  text["num_hidden_layers"] = n;
  auto& types = text["layer_types"];
  while (types.is_array() && static_cast<std::int64_t>(types.size()) > n) types.erase(types.size() - 1);
  if (auto ids = text.find("ple_layer_ids"); ids != text.end() && ids->is_array()) {
    auto kept = ordered_json::array();
    for (const auto& id : *ids) {
      if (id.is_number_integer() && id.get<std::int64_t>() <= n) kept.push_back(id);
    }
    *ids = kept;
  }
  return config;
}

/// The text model's tensors as MLX lays them out.
std::vector<ExpectedTensor> mlx_tensors(const Checkpoint& checkpoint, const std::string& model,
                                        const nlohmann::json& config) {
  const std::string where = (checkpoint.directory() / "config.json").string();
  if (model == "kolibri1") {
    return kolibri1_tensors(Kolibri1Config::from_json(config, where), {ExpertLayout::stacked});
  }
  const Qwen4ExpConfig c = Qwen4ExpConfig::from_json(config, where);
  Qwen4ExpLayout layout = find_qwen4_exp_layout(checkpoint, c);
  std::fill(layout.experts.begin(), layout.experts.end(), ExpertLayout::stacked);
  return qwen4_exp_tensors(c, layout);
}

/// Where the matrices of a weight lie in the source: one, or an expert each of a stack.
struct Source {
  std::string name;
  MatrixView matrix;
};
std::vector<Source> expert_sources(const Checkpoint& checkpoint, const ExpectedTensor& stack) {
  const std::size_t at = stack.name.find(kStack);
  const std::string mlp = stack.name.substr(0, at) + "mlp.";
  const std::string part = stack.name.substr(at + kStack.size());  // gate_proj.weight
  const std::int64_t n = stack.shape[0];
  const std::int64_t n_rows = stack.shape[1];
  const std::int64_t n_cols = stack.shape[2];
  std::vector<Source> sources;
  for (std::int64_t e = 0; e < n; ++e) {
    const auto add_from_stack = [&](const std::string& name, std::int64_t stack_rows, std::int64_t first_row) {
      const MatrixView matrix = checkpoint.stacked_matrix(name, n, stack_rows, n_cols, e, /*check_values=*/false);
      sources.push_back({name, kernels::rows_of(matrix, first_row, n_rows)});
    };
    const std::string fused = mlp + "experts.gate_up_proj";
    if (checkpoint.find(stack.name) != nullptr) {
      add_from_stack(stack.name, n_rows, 0);
    } else if (checkpoint.find(fused) != nullptr && part != "down_proj.weight") {
      add_from_stack(fused, 2 * n_rows, part == "gate_proj.weight" ? 0 : n_rows);
    } else if (checkpoint.find(fused) != nullptr) {
      add_from_stack(mlp + "experts.down_proj", n_rows, 0);
    } else {
      const std::string name = fmt::format("{}experts.{}.{}", mlp, e, part);
      sources.push_back({name, checkpoint.matrix(name, n_rows, n_cols, /*check_values=*/false)});
    }
  }
  return sources;
}

/// The name of a plain tensor in the source.
std::string source_name(const Checkpoint& checkpoint, const std::string& name) {
  constexpr std::string_view kBias = "mlp.expert_bias";
  if (!name.ends_with(kBias) || checkpoint.find(name) != nullptr) return name;
  return name.substr(0, name.size() - kBias.size()) + "moe.router.expert_bias";
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const ConvertOptions& options) : checkpoint_(checkpoint), options_(options) {
    plan_.target = {0, options.group_size, options.rule};
  }

  ConvertPlan plan() {
    ordered_json config = output_config(checkpoint_, options_);
    const Family family = find_family(checkpoint_);
    for (const ExpectedTensor& tensor : mlx_tensors(checkpoint_, family.model_type, config)) add(tensor);
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      const bool is_left_alone =
          std::any_of(family.left_alone.begin(), family.left_alone.end(),
                      [&name = name](const std::string& start) { return name.starts_with(start); });
      if (!is_left_alone) continue;
      add_copy(std::string(name), *tensor);
      if (!name.ends_with("_scale_inv")) plan_.n_parameters += tensor->n_elements();
    }
    place();
    write_config(config);
    write_index();
    for (const ConvertJob& job : plan_.jobs) plan_.n_source_bytes += job.n_source_bytes;
    return std::move(plan_);
  }

 private:
  std::size_t add_output(std::string name, Dtype dtype, std::vector<std::int64_t> shape) {
    plan_.tensors.push_back({std::move(name), dtype, std::move(shape)});
    return plan_.tensors.size() - 1;
  }

  void add(const ExpectedTensor& tensor) {
    if (tensor.kind < TensorKind::scale) plan_.n_parameters += n_parameters(tensor);
    const bool is_matrix = tensor.storage == Storage::matrix || tensor.storage == Storage::unscaled;
    const std::string name = source_name(checkpoint_, tensor.name);
    const TensorView* source = checkpoint_.find(name);
    const WeightClass weights = weight_class(tensor);
    if (weights == WeightClass::none && !(is_matrix && source->dtype == Dtype::f8_e4m3)) {
      return tensor.name.ends_with("mlp.expert_bias") ? add_widened(tensor, name) : add_copy(tensor.name, *source);
    }
    const std::vector<Source> sources =
        tensor.shape.size() == 3
            ? expert_sources(checkpoint_, tensor)
            : std::vector<Source>{{name, checkpoint_.matrix(name, tensor.shape[0], tensor.shape[1], false)}};
    const std::int64_t bits = options_.bits_of(weights);
    if (bits != 0 && tensor.shape.back() % options_.group_size == 0) {
      add_quantised(tensor, sources, bits);
    } else {
      add_rows(ConvertJob::Kind::round, sources, add_output(tensor.name, Dtype::bf16, tensor.shape), 0);
    }
  }

  [[nodiscard]] std::int64_t n_parameters(const ExpectedTensor& tensor) const {
    return tensor.storage == Storage::rows ? checkpoint_.find(tensor.name)->n_elements() : product(tensor.shape);
  }

  void add_copy(const std::string& name, const TensorView& tensor) {
    const std::size_t out = add_output(name, tensor.dtype, tensor.shape);
    const auto n_bytes = static_cast<std::int64_t>(tensor.bytes.size());
    constexpr std::int64_t kPerJob = 4 * kElementsPerJob;
    for (std::int64_t first = 0; first < n_bytes; first += kPerJob) {
      const std::int64_t n = std::min(kPerJob, n_bytes - first);
      plan_.jobs.push_back({.kind = ConvertJob::Kind::copy,
                            .tensor = &tensor,
                            .name = name,
                            .first = first,
                            .n = n,
                            .first_out = first,
                            .out = out,
                            .n_source_bytes = n});
    }
  }

  void add_widened(const ExpectedTensor& tensor, const std::string& name) {
    const TensorView& source = *checkpoint_.find(name);
    plan_.jobs.push_back({.kind = ConvertJob::Kind::widen,
                          .tensor = &source,
                          .name = name,
                          .out = add_output(tensor.name, Dtype::f32, tensor.shape),
                          .n_source_bytes = static_cast<std::int64_t>(source.bytes.size())});
  }

  void add_quantised(const ExpectedTensor& tensor, const std::vector<Source>& sources, std::int64_t bits) {
    std::vector<std::int64_t> shape = tensor.shape;
    shape.back() = tensor.shape.back() * bits / 32;
    const std::size_t out = add_output(tensor.name, Dtype::u32, shape);
    shape.back() = tensor.shape.back() / options_.group_size;
    add_output(affine_scales_name(tensor.name), Dtype::bf16, shape);
    add_output(affine_biases_name(tensor.name), Dtype::bf16, shape);
    add_rows(ConvertJob::Kind::quantise, sources, out, bits);
    formats_.emplace(module_of(tensor.name), bits);
  }

  void add_rows(ConvertJob::Kind kind, const std::vector<Source>& sources, std::size_t out, std::int64_t bits) {
    std::int64_t first_out = 0;
    for (const auto& [name, matrix] : sources) {
      // FP8: whole rows of blocks.
      const std::int64_t unit = matrix.format == kernels::Format::e4m3_block ? kernels::kFp8Block : 1;
      const std::int64_t per_job = std::max<std::int64_t>(1, kElementsPerJob / unit / matrix.n_cols) * unit;
      for (std::int64_t first = 0; first < matrix.n_rows; first += per_job) {
        const std::int64_t n = std::min(per_job, matrix.n_rows - first);
        plan_.jobs.push_back({.kind = kind,
                              .matrix = matrix,
                              .name = name,
                              .first = first,
                              .n = n,
                              .first_out = first_out + first,
                              .out = out,
                              .bits = bits,
                              .n_source_bytes = n * kernels::row_bytes(matrix)});
      }
      first_out += matrix.n_rows;
    }
  }

  /// Shards in order of work; within one, tensors by name, as mlx writes the header.
  void place() {
    std::vector<std::vector<std::size_t>> members(1);
    std::int64_t n_bytes = 0;
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
      OutputTensor& tensor = plan_.tensors[i];
      if (!members.back().empty() && n_bytes + tensor.n_bytes() > options_.max_shard_bytes) {
        members.emplace_back();
        n_bytes = 0;
      }
      n_bytes += tensor.n_bytes();
      plan_.n_output_bytes += tensor.n_bytes();
      tensor.shard = members.size() - 1;
      members.back().push_back(i);
    }
    for (std::size_t s = 0; s < members.size(); ++s) {
      std::sort(members[s].begin(), members[s].end(),
                [&](std::size_t a, std::size_t b) { return plan_.tensors[a].name < plan_.tensors[b].name; });
      plan_.shards.push_back(make_shard(members[s]));
      plan_.shards.back().name = members.size() == 1
                                     ? "model.safetensors"
                                     : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, members.size());
    }
  }

  ConvertShard make_shard(const std::vector<std::size_t>& members) {
    ConvertShard shard;
    ordered_json header = {{"__metadata__", {{"format", "mlx"}}}};
    for (const std::size_t i : members) {
      OutputTensor& tensor = plan_.tensors[i];
      tensor.offset = shard.n_data_bytes;
      shard.n_data_bytes += tensor.n_bytes();
      header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                             {"shape", tensor.shape},
                             {"data_offsets", {tensor.offset, shard.n_data_bytes}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    for (std::size_t i = 0; i < 8; ++i) shard.header += static_cast<char>(text.size() >> 8 * i);
    shard.header += text;
    return shard;
  }

  void write_config(ordered_json& config) {
    const auto format = [&](std::int64_t bits) {
      return ordered_json{{"group_size", options_.group_size}, {"bits", bits}, {"mode", "affine"}};
    };
    if (!formats_.empty()) {
      ordered_json block = format(options_.bits);
      for (const auto& [module, bits] : formats_) {
        if (bits != options_.bits) block[module] = format(bits);
      }
      config["quantization"] = block;
      config["quantization_config"] = block;
    }
    plan_.config = config.dump(4);
  }

  void write_index() {
    std::map<std::string, std::string> map;
    for (const OutputTensor& tensor : plan_.tensors) map[tensor.name] = plan_.shards[tensor.shard].name;
    const ordered_json index = {
        {"metadata", {{"total_size", plan_.n_output_bytes}, {"total_parameters", plan_.n_parameters}}},
        {"weight_map", map}};
    plan_.index = index.dump(4);
  }

  const Checkpoint& checkpoint_;
  const ConvertOptions& options_;
  ConvertPlan plan_;
  std::map<std::string, std::int64_t> formats_;  // bits of each quantised module
};

void check_options(const ConvertOptions& options) {
  const auto check = [](const char* flag, std::optional<std::int64_t> bits, bool may_be_zero) {
    if (!bits || kernels::is_affine_bits(*bits) || (may_be_zero && *bits == 0)) return;
    throw Error(ErrorCode::usage, fmt::format("{}: {}, expected 2, 3, 4, 5, 6 or 8{}", flag, *bits,
                                              may_be_zero ? ", or 0 for bf16" : ""));
  };
  check("--bits", options.bits, false);
  check("--attn-bits", options.dense_bits, true);
  check("--expert-bits", options.expert_bits, true);
  check("--embed-bits", options.embed_bits, true);
  check("--lm-head-bits", options.head_bits, true);
  if (!kernels::is_affine_group(options.group_size)) {
    throw Error(ErrorCode::usage, fmt::format("--group-size: {}, expected 32, 64 or 128", options.group_size));
  }
}

/// The source must be whole, and nothing of it may get lost.
void check_source(const Checkpoint& checkpoint) {
  const std::string directory = checkpoint.directory().string();
  if (checkpoint.affine()) {
    throw Error(ErrorCode::config, directory +
                                       "/config.json: quantization: this is an MLX directory already; convert "
                                       "the checkpoint that it was made from");
  }
  const Inventory inventory = take_inventory(checkpoint, /*check_values=*/false);
  if (!inventory.problems.empty()) checkpoint.refuse(inventory.problems.front());
  if (!inventory.unexpected.empty()) {
    throw Error(ErrorCode::tensor,
                fmt::format("{}: {}: not known to {}, and would be lost; run 'kalibri inspect {}'", directory,
                            inventory.unexpected.front(), inventory.model_type, directory));
  }
}

}  // namespace

ConvertOptions ConvertOptions::mixed() {
  ConvertOptions options;
  options.dense_bits = options.embed_bits = options.head_bits = 8;
  return options;
}

std::int64_t ConvertOptions::bits_of(WeightClass weights) const {
  if (!quantises) return 0;
  switch (weights) {
    case WeightClass::none:
      return 0;
    case WeightClass::dense:
      return dense_bits.value_or(bits);
    case WeightClass::experts:
      return expert_bits.value_or(bits);
    case WeightClass::embed:
      return embed_bits.value_or(bits);
    case WeightClass::head:
      return head_bits.value_or(bits);
  }
  return 0;
}

std::int64_t OutputTensor::n_bytes() const { return product(shape) * dtype_bits(dtype) / 8; }

ConvertPlan plan_conversion(const Checkpoint& checkpoint, const ConvertOptions& options) {
  check_options(options);
  check_source(checkpoint);
  return Planner(checkpoint, options).plan();
}

}  // namespace kalibri::checkpoint
