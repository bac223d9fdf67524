#include "engine/checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.hpp"
#include "engine/checkpoint/json.hpp"

namespace kalibri::checkpoint {

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxDims = 64;

struct DtypeFacts {
  Dtype dtype;
  std::string_view name;
  std::int64_t bits;
};

constexpr std::array kDtypes = {
    // in the order of the enumeration
    DtypeFacts{Dtype::f64, "F64", 64},
    DtypeFacts{Dtype::f32, "F32", 32},
    DtypeFacts{Dtype::f16, "F16", 16},
    DtypeFacts{Dtype::bf16, "BF16", 16},
    DtypeFacts{Dtype::f8_e4m3, "F8_E4M3", 8},
    DtypeFacts{Dtype::f8_e5m2, "F8_E5M2", 8},
    DtypeFacts{Dtype::f8_e8m0, "F8_E8M0", 8},
    DtypeFacts{Dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    DtypeFacts{Dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    DtypeFacts{Dtype::f6_e2m3, "F6_E2M3", 6},
    DtypeFacts{Dtype::f6_e3m2, "F6_E3M2", 6},
    DtypeFacts{Dtype::f4, "F4", 4},
    DtypeFacts{Dtype::i64, "I64", 64},
    DtypeFacts{Dtype::i32, "I32", 32},
    DtypeFacts{Dtype::i16, "I16", 16},
    DtypeFacts{Dtype::i8, "I8", 8},
    DtypeFacts{Dtype::u64, "U64", 64},
    DtypeFacts{Dtype::u32, "U32", 32},
    DtypeFacts{Dtype::u16, "U16", 16},
    DtypeFacts{Dtype::u8, "U8", 8},
    DtypeFacts{Dtype::boolean, "BOOL", 8},
    DtypeFacts{Dtype::c64, "C64", 64},
};

constexpr bool in_enumeration_order() {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (static_cast<std::size_t>(kDtypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_enumeration_order());

const DtypeFacts& facts(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

/// Receives the header's JSON event by event (nlohmann's SAX interface): nothing is stored but what the format allows,
/// a name given twice is seen, and nesting cannot go deeper than the format's three levels.
class HeaderReader {
 public:
  HeaderReader(const MappedFile& file, std::span<const std::byte> data, SafetensorsFile::TensorMap& tensors,
               std::map<std::string, std::string>& metadata)
      : file_(file), data_(data), tensors_(tensors), metadata_(metadata) {}

  bool start_object(std::size_t) {
    if (place_ == Place::start) {
      place_ = Place::header;
    } else if (place_ == Place::header) {
      place_ = name_ == "__metadata__" ? Place::metadata : Place::tensor;
      entry_ = {};
    } else {
      refuse_value();
    }
    return true;
  }

  bool key(std::string& key) {
    if (place_ == Place::header) {
      name_ = key;
      if (tensors_.contains(name_) || (name_ == "__metadata__" && has_metadata_)) fail("is given twice");
    } else if (place_ == Place::metadata) {
      field_ = key;
      if (metadata_.contains(field_)) fail(fmt::format("key '{}' is given twice", printable(field_)));
    } else {
      field_ = key;
      if ((field_ == "dtype" && entry_.dtype) || (field_ == "shape" && entry_.shape) ||
          (field_ == "data_offsets" && entry_.offsets)) {
        fail(field_ + " is given twice");
      }
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor) {
      add_tensor();
      place_ = Place::header;
    } else if (place_ == Place::metadata) {
      has_metadata_ = true;
      place_ = Place::header;
    } else {
      place_ = Place::end;
    }
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::metadata) {
      metadata_[field_] = value;
    } else if (place_ == Place::tensor && field_ == "dtype") {
      const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& f) { return f.name == value; });
      if (found == kDtypes.end()) fail(fmt::format("unknown dtype '{}'", printable(value)));
      entry_.dtype = found->dtype;
    } else {
      refuse_value();
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::tensor || (field_ != "shape" && field_ != "data_offsets")) refuse_value();
    place_ = Place::list;
    (field_ == "shape" ? entry_.shape : entry_.offsets).emplace();
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (place_ != Place::list) refuse_value();
    if (value > static_cast<std::uint64_t>(INT64_MAX)) fail(fmt::format("{}: {} is out of range", field_, value));
    std::vector<std::int64_t>& list = *(field_ == "shape" ? entry_.shape : entry_.offsets);
    if (list.size() == kMaxDims) fail(fmt::format("{} has more than {} numbers", field_, kMaxDims));
    list.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool end_array() {
    place_ = Place::tensor;
    return true;
  }

  bool null() { return refuse_value(); }
  bool boolean(bool) { return refuse_value(); }
  bool number_integer(std::int64_t) { return refuse_value(); }  // negative: others arrive as unsigned
  bool number_float(double, const std::string&) { return refuse_value(); }
  bool binary(nlohmann::json::binary_t&) { return refuse_value(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw Error(ErrorCode::format,
                fmt::format("{}: the header is no valid JSON (its byte {})", file_.path().string(), position));
  }

 private:
  enum class Place : std::uint8_t { start, header, metadata, tensor, list, end };
  struct Entry {
    std::optional<Dtype> dtype;
    std::optional<std::vector<std::int64_t>> shape;
    std::optional<std::vector<std::int64_t>> offsets;
  };

  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorCode::format, fmt::format("{}: {}: {}", file_.path().string(), printable(name_), text));
  }

  [[noreturn]] bool refuse_value() const {
    switch (place_) {
      case Place::metadata:
        fail(fmt::format("'{}' is no string", printable(field_)));
      case Place::tensor:
        fail(fmt::format("'{}' is not what a tensor has: dtype (a string), shape and data_offsets (lists)",
                         printable(field_)));
      case Place::list:
        fail(field_ + " holds something other than whole numbers from 0 up");
      case Place::header:
        fail("is no object");
      case Place::start:
      case Place::end:
        break;
    }
    throw Error(ErrorCode::format, file_.path().string() + ": the header is no JSON object");
  }

  void add_tensor() {
    if (!entry_.dtype) fail("dtype is missing");
    if (!entry_.shape) fail("shape is missing");
    if (!entry_.offsets || entry_.offsets->size() != 2) fail("data_offsets is missing or not [begin, end]");
    const std::int64_t begin = entry_.offsets->front();
    const std::int64_t end = entry_.offsets->back();
    if (end < begin) fail(fmt::format("data_offsets [{}, {}] end before they begin", begin, end));
    if (static_cast<std::uint64_t>(end) > data_.size()) {
      fail(fmt::format("data_offsets [{}, {}] end past the file's {} data bytes; truncated? fetch the file again",
                       begin, end, data_.size()));
    }
    std::int64_t n_bits = facts(*entry_.dtype).bits;
    for (const std::int64_t n : *entry_.shape) {
      if (__builtin_mul_overflow(n_bits, n, &n_bits)) {
        fail(fmt::format("shape {} overflows", shape_text(*entry_.shape)));
      }
    }
    if (n_bits % 8 != 0 || n_bits / 8 != end - begin) {
      fail(fmt::format("shape {} of {} needs {} bytes, data_offsets [{}, {}] hold {}", shape_text(*entry_.shape),
                       facts(*entry_.dtype).name, (n_bits + 7) / 8, begin, end, end - begin));
    }
    TensorView& tensor = tensors_[name_];
    tensor.dtype = *entry_.dtype;
    tensor.shape = std::move(*entry_.shape);
    tensor.bytes = data_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    tensor.file_offset = static_cast<std::int64_t>(file_.bytes().size() - data_.size()) + begin;
    tensor.file = &file_;
  }

  const MappedFile& file_;
  std::span<const std::byte> data_;
  SafetensorsFile::TensorMap& tensors_;
  std::map<std::string, std::string>& metadata_;
  Place place_ = Place::start;
  bool has_metadata_ = false;
  std::string name_;   // of the tensor, or "__metadata__"
  std::string field_;  // within it
  Entry entry_;
};

/// The tensors must follow each other from the first data byte to the last.
void check_layout(const SafetensorsFile::TensorMap& tensors, std::int64_t data_begin, std::int64_t data_end,
                  const std::string& where) {
  std::vector<const SafetensorsFile::TensorMap::value_type*> order;
  order.reserve(tensors.size());
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.file_offset, a->second.bytes.size()) <
           std::pair(b->second.file_offset, b->second.bytes.size());
  });
  std::int64_t next = data_begin;
  const SafetensorsFile::TensorMap::value_type* before = nullptr;
  const auto name_before = [&] { return before == nullptr ? "the header" : printable(before->first); };
  for (const auto* entry : order) {
    const std::int64_t begin = entry->second.file_offset;
    if (begin != next) {
      const std::string rule = begin < next
                                   ? fmt::format("overlaps {} by {} bytes", name_before(), next - begin)
                                   : fmt::format("begins {} bytes after the end of {}", begin - next, name_before());
      throw Error(ErrorCode::format, fmt::format("{}: {}: {}", where, printable(entry->first), rule));
    }
    next = begin + static_cast<std::int64_t>(entry->second.bytes.size());
    before = entry;
  }
  if (next != data_end) {
    throw Error(ErrorCode::format, fmt::format("{}: {} bytes after the end of {} belong to no tensor", where,
                                               data_end - next, name_before()));
  }
}

}  // namespace

std::int64_t dtype_bits(Dtype dtype) { return facts(dtype).bits; }

std::string_view dtype_name(Dtype dtype) { return facts(dtype).name; }

std::int64_t TensorView::n_elements() const {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(std::make_unique<MappedFile>(path)) {
  const std::span<const std::byte> bytes = file_->bytes();
  const auto fail = [&](const std::string& text) {
    throw Error(ErrorCode::format, fmt::format("{}: {}", path.string(), text));
  };
  if (bytes.size() < kLengthBytes) {
    fail(fmt::format("{} bytes, too few for the 8 bytes of a safetensors header length", bytes.size()));
  }
  std::uint64_t header_bytes = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;)
    header_bytes = header_bytes << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  if (header_bytes > bytes.size() - kLengthBytes) {
    fail(
        fmt::format("the header's length {} goes past the end of the file ({} bytes); truncated or no safetensors file",
                    header_bytes, bytes.size()));
  }
  if (header_bytes > kMaxHeaderBytes) {
    fail(fmt::format("the header's length {} exceeds the format's limit {}", header_bytes, kMaxHeaderBytes));
  }
  header_ = bytes.subspan(kLengthBytes, header_bytes);
  data_ = bytes.subspan(kLengthBytes + header_bytes);
  if (header_.empty() || header_.front() != std::byte{'{'}) fail("the header does not begin with '{'");

  HeaderReader reader(*file_, data_, tensors_, metadata_);
  const auto* text = reinterpret_cast<const char*>(header_.data());
  nlohmann::json::sax_parse(text, text + header_.size(), &reader);
  check_layout(tensors_, static_cast<std::int64_t>(bytes.size() - data_.size()),
               static_cast<std::int64_t>(bytes.size()), path.string());
}

}  // namespace kalibri::checkpoint
