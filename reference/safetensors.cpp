#include "reference/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "reference/error.hpp"
#include "reference/json.hpp"

namespace kalibri::reference {
namespace {

constexpr std::size_t kLengthBytes = 8;  // the header's length, little-endian, comes first

std::optional<std::int64_t> dtype_bytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, std::int64_t> kDtypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  for (const auto& [name, n_bytes] : kDtypes) {
    if (name == dtype) return n_bytes;
  }
  return std::nullopt;
}

std::span<const std::byte> header_of(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kLengthBytes) {
    throw Error(fmt::format("{}: holds {} bytes: too short for a safetensors file", where, file.size()));
  }
  std::uint64_t n_bytes = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) n_bytes = n_bytes << 8 | std::to_integer<std::uint64_t>(file[i]);
  if (n_bytes > file.size() - kLengthBytes) {
    throw Error(fmt::format("{}: header of {} bytes claimed, but the file has only {} bytes: truncated or damaged",
                            where, n_bytes, file.size()));
  }
  return file.subspan(kLengthBytes, static_cast<std::size_t>(n_bytes));
}

/// The size in bytes that `shape` and `dtype` ask for, or nothing when it is beyond 2^63.
std::optional<std::int64_t> size_of(std::span<const std::int64_t> shape, std::int64_t element_bytes) {
  std::int64_t n_bytes = element_bytes;
  for (const std::int64_t n : shape) {
    if (__builtin_mul_overflow(n_bytes, n, &n_bytes)) return std::nullopt;
  }
  return n_bytes;
}

/// An array of counts below `key`; throws Error.
std::vector<std::int64_t> counts(const nlohmann::json& entry, const char* key, const std::string& where) {
  const auto found = entry.is_object() ? entry.find(key) : entry.end();
  if (!entry.is_object() || found == entry.end() || !found->is_array()) {
    throw Error(fmt::format("{}: header entry {} has no array '{}'", where, shown(entry), key));
  }
  std::vector<std::int64_t> values;
  for (const nlohmann::json& element : *found) {
    const std::optional<std::int64_t> count = as_count(element);
    if (!count) throw Error(fmt::format("{}: '{}' holds {}, expected a count below 2^63", where, key, shown(element)));
    values.push_back(*count);
  }
  return values;
}

TensorView view_of(const std::string& name, const nlohmann::json& entry, std::span<const std::byte> data,
                   const std::string& file) {
  const std::string where = file + ": " + name;
  TensorView view{name, file, "", counts(entry, "shape", where), {}};
  if (entry.size() > 3) {
    throw Error(fmt::format("{}: header entry {} has more than dtype, shape and data_offsets", where, shown(entry)));
  }
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) throw Error(where + ": header entry has no text 'dtype'");
  view.dtype = dtype->get<std::string>();
  const std::optional<std::int64_t> element_bytes = dtype_bytes(view.dtype);
  if (!element_bytes) throw Error(fmt::format("{}: unknown dtype {}", where, shown(*dtype)));

  const std::vector<std::int64_t> offsets = counts(entry, "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > static_cast<std::int64_t>(data.size())) {
    throw Error(fmt::format("{}: data_offsets {}, expected begin <= end <= {} (the file's data): truncated or damaged",
                            where, shape_text(offsets), data.size()));
  }
  const std::optional<std::int64_t> n_bytes = size_of(view.shape, *element_bytes);
  if (!n_bytes) throw Error(fmt::format("{}: shape {} is larger than any file", where, shape_text(view.shape)));
  if (*n_bytes != offsets[1] - offsets[0]) {
    throw Error(fmt::format("{}: {} {} needs {} bytes, but data_offsets {} hold {}", where, view.dtype,
                            shape_text(view.shape), *n_bytes, shape_text(offsets), offsets[1] - offsets[0]));
  }
  view.bytes = data.subspan(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(*n_bytes));
  return view;
}

/// Every byte of the data belongs to exactly one tensor.
void check_coverage(const std::map<std::string, TensorView>& tensors, std::span<const std::byte> data,
                    const std::string& file) {
  std::vector<const TensorView*> by_place;
  for (const auto& [name, view] : tensors) by_place.push_back(&view);
  std::ranges::sort(by_place, {},
                    [](const TensorView* view) { return std::pair(view->bytes.data(), view->bytes.size()); });
  const std::byte* end = data.data();
  const TensorView* previous = nullptr;
  for (const TensorView* view : by_place) {
    if (view->bytes.data() < end) throw Error(fmt::format("{}: {}: overlaps {}", file, view->name, previous->name));
    if (view->bytes.data() > end) {
      throw Error(
          fmt::format("{}: {}: {} bytes before it belong to no tensor", file, view->name, view->bytes.data() - end));
    }
    end = view->bytes.data() + view->bytes.size();
    previous = view;
  }
  if (end != data.data() + data.size()) {
    throw Error(fmt::format("{}: {} bytes after the last tensor: the file is longer than its header says", file,
                            data.data() + data.size() - end));
  }
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : name_(path.filename().string()), file_(path), header_(header_of(file_.bytes(), path.string())) {
  data_ = file_.bytes().subspan(kLengthBytes + header_.size());
  const std::string_view text(reinterpret_cast<const char*>(header_.data()), header_.size());
  const nlohmann::json header = parse_json(text, path.string() + ": header");
  if (!header.is_object()) throw Error(fmt::format("{}: header is no JSON object", path.string()));
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") tensors_.emplace(name, view_of(name, entry, data_, path.string()));
  }
  check_coverage(tensors_, data_, path.string());
}

}  // namespace kalibri::reference
