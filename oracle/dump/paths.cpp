// Paths of datasets below a prompt: from a tensor's name to its path and back.
#include "oracle/dump/names.hpp"

namespace kalibri::dump {

namespace {

/// Cuts the part before the first '/' off `path`.
std::string_view take_segment(std::string_view& path) {
  const std::size_t end = path.find('/');
  const std::string_view segment = path.substr(0, end);
  path = end == std::string_view::npos ? std::string_view{} : path.substr(end + 1);
  return segment;
}

}  // namespace

std::optional<TensorName> find_tensor(std::string_view path) {
  const std::string_view first = take_segment(path);
  if (path.empty()) {
    for (const TensorName& tensor : kPromptTensors) {
      if (tensor.name == first) return tensor;
    }
    return std::nullopt;
  }
  take_segment(path);  // the layer's number, the schedule's name
  if (first == "decode") return path == kScheduleLogits.name ? std::optional(kScheduleLogits) : std::nullopt;
  if (first != "layers") return std::nullopt;
  const bool is_tap = path.starts_with("taps/");
  const std::optional<TensorName> tensor = find_layer_tensor(is_tap ? path.substr(5) : path);
  return tensor && tensor->is_tap == is_tap ? tensor : std::nullopt;
}

std::string layer_path(std::int64_t layer, std::string_view name) {
  const std::optional<TensorName> tensor = find_layer_tensor(name);
  const bool is_tap = !tensor || tensor->is_tap;
  std::string path = layer < 10 ? "layers/0" : "layers/";
  path += std::to_string(layer);
  path += is_tap ? "/taps/" : "/";
  path += name;
  return path;
}

}  // namespace kalibri::dump
