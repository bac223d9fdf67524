// The checks of a dump's structure, on the flat list of nodes that scan.hpp makes.
#include "oracle/dump/contents.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>

#include "oracle/dump/scan.hpp"

namespace kalibri::dump {

using hdf5::Handle;

namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// Sizes of named axes. A letter means the same size wherever it stands within its scope; names of several letters
/// ("heads*D") may differ from layer to layer.
class Axes {
 public:
  struct Size {
    std::int64_t value;
    std::string path;  // where it was seen first
  };

  /// Remembers or compares; returns what contradicts, or nothing.
  std::optional<Size> bind(std::string_view axis, std::int64_t value, const std::string& path) {
    if (axis.size() > 1) return std::nullopt;
    if (axis[0] >= '0' && axis[0] <= '9') {
      const std::int64_t expected = axis[0] - '0';
      return expected == value ? std::nullopt : std::optional<Size>({expected, "the format"});
    }
    const Size& known = sizes_.try_emplace(std::string(axis), Size{value, path}).first->second;
    return known.value == value ? std::nullopt : std::optional(known);
  }
  void forget(std::string_view axes) {
    for (const char axis : axes) sizes_.erase(std::string(1, axis));
  }
  [[nodiscard]] const Size* find(const std::string& axis) const {
    const auto found = sizes_.find(axis);
    return found == sizes_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::string, Size, std::less<>> sizes_;
};

class Checker {
 public:
  Checker(hid_t file, std::string where) : file_(file), where_(std::move(where)) {}

  Contents run() {
    read_header();
    H5L_info_t link;  // a link that leads elsewhere is not followed
    const bool is_here = H5Lget_info(file_, "prompts", &link, H5P_DEFAULT) >= 0 && link.type == H5L_TYPE_HARD;
    if (is_here) group_ = Handle(H5Gopen2(file_, "prompts", H5P_DEFAULT), H5Gclose);
    if (!group_.valid()) fail("", "no group /prompts: a dump has one, with a group for each prompt");
    const std::vector<Node> nodes = scan(group_.id(), where_ + ": /prompts");
    for (std::size_t begin = 0; begin < nodes.size();) {
      std::size_t end = begin + 1;
      while (end < nodes.size() && nodes[end].path.starts_with(nodes[begin].path + "/")) ++end;
      read_prompt(std::span(nodes).subspan(begin, end - begin));
      begin = end;
    }
    if (contents_.prompts.empty()) fail("", "no prompt below /prompts: nothing to compare");
    check_streams();
    return std::move(contents_);
  }

 private:
  void read_header();
  void read_prompt(std::span<const Node> nodes);
  void read_dataset(PromptInfo& prompt, const Node& node, std::string_view path);
  void check_group(PromptInfo& prompt, const Node& node, std::string_view path);
  void check_shape(const Node& node, const TensorName& known);
  void read_tokens(PromptInfo& prompt, const Node& node);
  void read_positions(PromptInfo& prompt, const Node& node);
  void check_position_ids(const Node& node);
  void read_schedule(PromptInfo& prompt, const Node& node, std::string name);
  void check_streams() const;
  std::vector<std::int64_t> read_all(const Node& node);

  [[noreturn]] void fail(const std::string& path, const std::string& what) const {
    throw Error(where_ + ": " + (path.empty() ? "" : "/prompts/" + path + ": ") + what);
  }

  hid_t file_;
  std::string where_;
  Handle group_;
  Axes axes_;
  Contents contents_;
};

void Checker::read_header() {
  const auto text = [this](const char* name) { return hdf5::read_text(file_, name, where_); };
  const std::optional<std::string> format = text("format");
  if (format != "kalibri-dump") {
    fail("", "an HDF5 file but no dump: attribute format is " + (format ? "'" + *format + "'" : "missing") +
                 ", expected 'kalibri-dump'; give a file that a dump command wrote");
  }
  const std::optional<std::int64_t> version = hdf5::read_int(file_, "version", where_);
  if (version != 1) {
    fail("", "dump version " + (version ? std::to_string(*version) : "missing") +
                 ", this program reads version 1: make the dump again with this program, or use that one's");
  }
  if (hdf5::read_int(file_, "complete", where_) != 1) {
    fail("", "unfinished: attribute complete is not 1, so the run that wrote it was stopped; run it again");
  }
  Header& header = contents_.header;
  header.producer = text("producer").value_or("");
  header.producer_version = text("producer_version").value_or("");
  header.model_type = text("model_type").value_or("");
  header.n_streams = hdf5::read_int(file_, "n_streams", where_).value_or(1);
  header.mode = text("mode").value_or("chained");
  header.checkpoint_fingerprint = text("checkpoint_fingerprint").value_or("");
  header.precision = text("precision").value_or("");
  header.options = text("options").value_or("");
  contents_.peak_rss_bytes = hdf5::read_int(file_, "peak_rss_bytes", where_).value_or(0);
  contents_.wall_s = hdf5::read_real(file_, "wall_s", where_).value_or(0);
  if (header.n_streams < 1 || header.n_streams > kMaxRowElements) {
    fail("", "attribute n_streams is " + std::to_string(header.n_streams) + ", expected at least 1");
  }
  if (header.mode != "chained" && header.mode != "teacher-forced" && header.mode != "decode") {
    fail("", "attribute mode is '" + header.mode + "', expected chained, teacher-forced or decode");
  }
}

std::vector<std::int64_t> Checker::read_all(const Node& node) {
  std::size_t n = 1;
  for (const std::int64_t size : node.info.shape) n *= static_cast<std::size_t>(size);
  std::vector<std::int64_t> values(n);
  const Handle dataset(H5Dopen2(group_.id(), node.path.c_str(), H5P_DEFAULT), H5Dclose);
  if (!dataset.valid() || !read_rows(dataset.id(), node.info, 0, node.info.shape[0], ElementType::i64, values.data())) {
    fail(node.path, "not readable (HDF5: " + hdf5::last_error() + "); the file is damaged: make it again");
  }
  return values;
}

/// `nodes`: the prompt itself, then all below it.
void Checker::read_prompt(std::span<const Node> nodes) {
  PromptInfo prompt;
  prompt.name = nodes[0].path;
  if (!nodes[0].is_group) fail(prompt.name, "a dataset, expected a prompt's group");
  const Handle group(H5Gopen2(group_.id(), prompt.name.c_str(), H5P_DEFAULT), H5Gclose);
  prompt.text_sha256 = hdf5::read_text(group.id(), "text_sha256", where_ + ": /prompts/" + prompt.name).value_or("");
  axes_.forget("TP");

  const auto find = [&](const std::string& name) -> const Node* {
    const auto found = std::ranges::find(nodes, prompt.name + "/" + name, &Node::path);
    return found == nodes.end() ? nullptr : &*found;
  };
  const Node* const tokens = find("tokens");
  if (tokens == nullptr) fail(prompt.name, "no dataset tokens: a prompt has its token ids, [T] integers");
  read_dataset(prompt, *tokens, "tokens");  // first: T, and with `positions` P, are compared with all others
  if (const Node* const positions = find("positions")) {
    read_dataset(prompt, *positions, "positions");
  } else {
    for (std::size_t i = 0; i < prompt.tokens.size(); ++i) prompt.positions.push_back(static_cast<std::int64_t>(i));
    axes_.bind("P", tokens->info.shape[0], tokens->path);
  }

  for (const Node& node : nodes.subspan(1)) {
    const std::string_view path = std::string_view(node.path).substr(prompt.name.size() + 1);
    if (node.is_group) {
      check_group(prompt, node, path);
    } else if (path != "tokens" && path != "positions") {
      read_dataset(prompt, node, path);
    }
  }
  std::ranges::sort(prompt.layers);
  contents_.prompts.push_back(std::move(prompt));
}

void Checker::check_group(PromptInfo& prompt, const Node& node, std::string_view path) {
  if (find_tensor(path)) fail(node.path, "a group, expected a dataset");
  const std::vector<std::string_view> parts = split(path, '/');
  if (parts.size() != 2 || parts[0] != "layers") return;
  axes_.forget("Ek");  // the same within a layer
  std::int64_t layer = -1;
  const std::string_view digits = parts[1];
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (error != std::errc() || end != digits.data() + digits.size() || layer < 0 ||
      layer_path(layer, "residual") != std::string(path) + "/residual") {
    fail(node.path, "no layer's name, expected its number in at least two digits, for example layers/03");
  }
  prompt.layers.push_back(layer);
}

void Checker::read_dataset(PromptInfo& prompt, const Node& node, std::string_view path) {
  if (node.is_group) fail(node.path, "a group, expected a dataset");
  const std::optional<TensorName> known = find_tensor(path);
  if (!known) {
    const std::vector<std::string_view> parts = split(path, '/');
    const bool is_group_name =
        parts[0] == "decode" ? parts.size() < 3 : parts[0] == "layers" && (parts.size() < 3 || parts.back() == "taps");
    if (is_group_name) fail(node.path, "a dataset, expected a group");
    contents_.unknown.push_back(node.path);
    if (node.problem.empty()) contents_.datasets.emplace(node.path, node.info);
    return;
  }
  if (!node.problem.empty()) fail(node.path, node.problem);
  const bool floating = node.info.type == ElementType::f32 || node.info.type == ElementType::f64;
  if (floating != known->floating) {
    fail(node.path, floating ? "holds floats, expected integers" : "holds integers, expected floats");
  }
  const bool is_schedule = path.starts_with("decode/");
  if (is_schedule) axes_.forget("N");
  check_shape(node, *known);
  contents_.datasets.emplace(node.path, node.info);
  if (path == "tokens") read_tokens(prompt, node);
  if (path == "positions") read_positions(prompt, node);
  if (path == "position_ids") check_position_ids(node);
  if (is_schedule) read_schedule(prompt, node, std::string(split(path, '/')[1]));
}

void Checker::check_shape(const Node& node, const TensorName& known) {
  const std::vector<std::int64_t>& shape = node.info.shape;
  const std::vector<std::string_view> axes = split(known.dims, ',');
  const std::string found = "shape " + shape_text(shape) + ", expected [" + std::string(known.dims) + "]";
  if (axes.size() != shape.size()) fail(node.path, found);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (shape[i] == 0 && (i == 0 || !known.is_tap)) fail(node.path, found + ": it is empty; leave it out or fill it");
    if (const std::optional<Axes::Size> other = axes_.bind(axes[i], shape[i], node.path)) {
      fail(node.path,
           found + " with " + std::string(axes[i]) + " = " + std::to_string(other->value) + " as in " + other->path);
    }
  }
  const Axes::Size* const n_experts = axes_.find("E");
  const Axes::Size* const top_k = axes_.find("k");
  if (n_experts != nullptr && top_k != nullptr && top_k->value > n_experts->value) {
    fail(top_k->path, "chooses " + std::to_string(top_k->value) + " experts of " + std::to_string(n_experts->value));
  }
}

void Checker::read_tokens(PromptInfo& prompt, const Node& node) {
  for (const std::int64_t token : read_all(node)) {
    if (token < 0 || token > std::numeric_limits<std::int32_t>::max()) {
      fail(node.path, "token " + std::to_string(token) + " at position " + std::to_string(prompt.tokens.size()) +
                          ", expected 0 or more (32 bits)");
    }
    prompt.tokens.push_back(static_cast<std::int32_t>(token));
  }
}

void Checker::read_positions(PromptInfo& prompt, const Node& node) {
  prompt.positions = read_all(node);
  std::int64_t previous = -1;
  for (const std::int64_t position : prompt.positions) {
    if (position <= previous || position >= std::ssize(prompt.tokens)) {
      fail(node.path, "position " + std::to_string(position) + " after " + std::to_string(previous) +
                          ", expected them ascending and below " + std::to_string(prompt.tokens.size()) +
                          ", the number of tokens");
    }
    previous = position;
  }
}

/// One place on each of three axes for every token.
void Checker::check_position_ids(const Node& node) {
  const std::vector<std::int64_t> ids = read_all(node);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] <= std::numeric_limits<std::int32_t>::max()) continue;
    const std::size_t n_tokens = ids.size() / 3;
    fail(node.path, "place " + std::to_string(ids[i]) + " of token " + std::to_string(i % n_tokens) + " on axis " +
                        std::to_string(i / n_tokens) + ", expected 0 or more (32 bits)");
  }
}

void Checker::read_schedule(PromptInfo& prompt, const Node& node, std::string name) {
  const std::string path = prompt.name + "/decode/" + name;
  const Handle group(H5Gopen2(group_.id(), path.c_str(), H5P_DEFAULT), H5Gclose);
  const auto read = [&](const char* attribute) {
    const std::optional<std::int64_t> value = hdf5::read_int(group.id(), attribute, where_ + ": /prompts/" + path);
    if (!value) fail(path, std::string("no attribute ") + attribute + ": it says which rows these are");
    return *value;
  };
  const Schedule schedule{std::move(name), read("first_position"), read("n_prefilled"), node.info.shape[0]};
  const std::int64_t n_tokens = std::ssize(prompt.tokens);
  if (schedule.first_position < 0 || schedule.first_position > n_tokens - schedule.n_rows) {
    fail(path, std::to_string(schedule.n_rows) + " rows from first_position " +
                   std::to_string(schedule.first_position) + " on, but the prompt has " + std::to_string(n_tokens) +
                   " tokens");
  }
  if (schedule.n_prefilled < 0 || schedule.n_prefilled > n_tokens) {
    fail(path, "n_prefilled is " + std::to_string(schedule.n_prefilled) + ", but the prompt has " +
                   std::to_string(n_tokens) + " tokens");
  }
  prompt.schedules.push_back(schedule);
}

void Checker::check_streams() const {
  const Axes::Size* const hidden = axes_.find("H");
  const Axes::Size* const residual = axes_.find("R");
  const std::int64_t n_streams = contents_.header.n_streams;
  if (hidden == nullptr || residual == nullptr || residual->value == n_streams * hidden->value) return;
  fail("", residual->path + " has rows of " + std::to_string(residual->value) + ", expected attribute n_streams (" +
               std::to_string(n_streams) + ") times " + std::to_string(hidden->value) + ", the width of " +
               hidden->path);
}

}  // namespace

Contents read_contents(hid_t file, const std::string& where) { return Checker(file, where).run(); }

bool read_rows(hid_t dataset, const DatasetInfo& info, std::int64_t first_row, std::int64_t n_rows, ElementType type,
               void* out) {
  if (n_rows == 0) return true;
  std::vector<hsize_t> start(info.shape.size(), 0);
  std::vector<hsize_t> count(info.shape.begin(), info.shape.end());
  start[0] = static_cast<hsize_t>(first_row);
  count[0] = static_cast<hsize_t>(n_rows);
  const Handle rows(H5Dget_space(dataset), H5Sclose);
  const Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  return rows.valid() && memory.valid() &&
         H5Sselect_hyperslab(rows.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) >= 0 &&
         H5Dread(dataset, hdf5::memory_type(type), memory.id(), rows.id(), H5P_DEFAULT, out) >= 0;
}

}  // namespace kalibri::dump
