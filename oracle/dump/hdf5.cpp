// The shared helpers over HDF5's C API.
#include "oracle/dump/hdf5.hpp"

#include <algorithm>
#include <cstring>

#include "oracle/dump/error.hpp"

namespace kalibri::dump::hdf5 {

namespace {

extern "C" herr_t keep_first(unsigned depth, const H5E_error2_t* error, void* text) {
  if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

bool write_attribute(hid_t object, const char* name, hid_t file_type, hid_t memory_type, const void* value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const bool exists = H5Aexists(object, name) > 0;
  const Handle attribute(exists ? H5Aopen(object, name, H5P_DEFAULT)
                                : H5Acreate2(object, name, file_type, space.id(), H5P_DEFAULT, H5P_DEFAULT),
                         H5Aclose);
  return attribute.valid() && H5Awrite(attribute.id(), memory_type, value) >= 0;
}

struct Attribute {
  Handle handle;
  Handle type;
};

[[noreturn]] void refuse(const std::string& where, const char* name, const std::string& what) {
  throw Error(where + ": attribute " + name + ": " + what);
}

/// Opens an attribute that holds one value.
std::optional<Attribute> open_attribute(hid_t object, const char* name, const std::string& where) {
  const htri_t exists = H5Aexists(object, name);
  if (exists < 0) refuse(where, name, "not readable (HDF5: " + last_error() + "); the file is damaged: make it again");
  if (exists == 0) return std::nullopt;
  Attribute attribute{{H5Aopen(object, name, H5P_DEFAULT), H5Aclose}, {}};
  if (attribute.handle.valid()) attribute.type = Handle(H5Aget_type(attribute.handle.id()), H5Tclose);
  const Handle space(attribute.type.valid() ? H5Aget_space(attribute.handle.id()) : H5I_INVALID_HID, H5Sclose);
  if (!space.valid())
    refuse(where, name, "not readable (HDF5: " + last_error() + "); the file is damaged: make it again");
  if (H5Sget_simple_extent_npoints(space.id()) != 1) refuse(where, name, "an array or empty, expected one value");
  return attribute;
}

void read_value(const Attribute& attribute, hid_t memory_type, void* value, const char* name,
                const std::string& where) {
  if (H5Aread(attribute.handle.id(), memory_type, value) < 0) {
    refuse(where, name, "not readable (HDF5: " + last_error() + "); the file is damaged: make it again");
  }
}

}  // namespace

void start() {
  static const herr_t kept = H5dont_atexit();
  static thread_local const herr_t silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  static_cast<void>(kept);
  static_cast<void>(silent);
}

std::string last_error() {
  std::string text = "no further message";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &text);
  // A failed read or write lists time, descriptor and addresses; the system's message is all of interest.
  const std::string_view begin = "error message = '";
  if (const std::size_t at = text.find(begin); at != std::string::npos) {
    const std::size_t from = at + begin.size();
    return text.substr(from, text.find('\'', from) - from);
  }
  return text;
}

hid_t memory_type(ElementType type) {
  switch (type) {
    case ElementType::f32:
      return H5T_NATIVE_FLOAT;
    case ElementType::f64:
      return H5T_NATIVE_DOUBLE;
    case ElementType::i32:
      return H5T_NATIVE_INT32;
    case ElementType::i64:
      return H5T_NATIVE_INT64;
  }
  return H5I_INVALID_HID;
}

hid_t file_type(ElementType type) {
  switch (type) {
    case ElementType::f32:
      return H5T_IEEE_F32LE;
    case ElementType::f64:
      return H5T_IEEE_F64LE;
    case ElementType::i32:
      return H5T_STD_I32LE;
    case ElementType::i64:
      return H5T_STD_I64LE;
  }
  return H5I_INVALID_HID;
}

std::size_t element_bytes(ElementType type) { return type == ElementType::f32 || type == ElementType::i32 ? 4 : 8; }

std::optional<ElementType> element_type(hid_t type) {
  const auto is = [type](hid_t little, hid_t big) { return H5Tequal(type, little) > 0 || H5Tequal(type, big) > 0; };
  if (is(H5T_IEEE_F32LE, H5T_IEEE_F32BE)) return ElementType::f32;
  if (is(H5T_IEEE_F64LE, H5T_IEEE_F64BE)) return ElementType::f64;
  if (is(H5T_STD_I32LE, H5T_STD_I32BE)) return ElementType::i32;
  if (is(H5T_STD_I64LE, H5T_STD_I64BE)) return ElementType::i64;
  return std::nullopt;
}

bool is_text(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
    const unsigned lead = byte(i);
    if (lead == 0x7F || (lead < 0x20 && lead != '\n' && lead != '\t')) return false;
    const std::size_t n_more = lead < 0x80   ? 0
                               : lead < 0xC2 ? 4
                               : lead < 0xE0 ? 1
                               : lead < 0xF0 ? 2
                               : lead < 0xF5 ? 3
                                             : 4;
    if (n_more == 4) return false;  // a stray continuation, an overlong form, beyond U+10FFFF
    for (std::size_t j = 1; j <= n_more; ++j) {
      if ((byte(i + j) & 0xC0U) != 0x80U) return false;
    }
    const unsigned next = byte(i + 1);
    if ((lead == 0xE0 && next < 0xA0) || (lead == 0xED && next > 0x9F)) return false;  // overlong, surrogates
    if ((lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next > 0x8F)) return false;
    i += n_more + 1;
  }
  return true;
}

bool is_name(std::string_view text) {
  return !text.empty() && text != "." && text.find_first_of("/\n\t") == std::string_view::npos && is_text(text);
}

bool write_text(hid_t object, const char* name, const std::string& value) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  if (H5Tset_size(type.id(), value.size() + 1) < 0 || H5Tset_cset(type.id(), H5T_CSET_UTF8) < 0) return false;
  return write_attribute(object, name, type.id(), type.id(), value.c_str());
}

bool write_int(hid_t object, const char* name, std::int64_t value) {
  return write_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

bool write_real(hid_t object, const char* name, double value) {
  return write_attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

std::optional<std::string> read_text(hid_t object, const char* name, const std::string& where) {
  const std::optional<Attribute> attribute = open_attribute(object, name, where);
  if (!attribute) return std::nullopt;
  const hid_t type = attribute->type.id();
  if (H5Tget_class(type) != H5T_STRING) refuse(where, name, "no text, expected a string");
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_cset(memory.id(), H5Tget_cset(type));
  std::string value;
  if (H5Tis_variable_str(type) > 0) {
    H5Tset_size(memory.id(), H5T_VARIABLE);
    char* pointer = nullptr;
    read_value(*attribute, memory.id(), &pointer, name, where);
    if (pointer != nullptr) value = pointer;
    H5free_memory(pointer);
  } else {
    const std::size_t size = H5Tget_size(type);
    if (size > kMaxTextBytes)
      refuse(where, name, "a string of " + std::to_string(size) + " bytes, expected up to 2^24");
    H5Tset_size(memory.id(), size);
    H5Tset_strpad(memory.id(), H5Tget_strpad(type));
    value.resize(size);
    read_value(*attribute, memory.id(), value.data(), name, where);
    value.resize(std::min(size, std::strlen(value.c_str())));
    if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) value.resize(value.find_last_not_of(' ') + 1);
  }
  if (!is_text(value)) refuse(where, name, "no valid UTF-8 text: write it as UTF-8");
  return value;
}

std::optional<std::int64_t> read_int(hid_t object, const char* name, const std::string& where) {
  const std::optional<Attribute> attribute = open_attribute(object, name, where);
  if (!attribute) return std::nullopt;
  const H5T_class_t kind = H5Tget_class(attribute->type.id());
  if (kind != H5T_INTEGER && kind != H5T_ENUM) refuse(where, name, "no integer, expected one");
  std::int64_t value = 0;
  read_value(*attribute, H5T_NATIVE_INT64, &value, name, where);
  return value;
}

std::optional<double> read_real(hid_t object, const char* name, const std::string& where) {
  const std::optional<Attribute> attribute = open_attribute(object, name, where);
  if (!attribute) return std::nullopt;
  const H5T_class_t kind = H5Tget_class(attribute->type.id());
  if (kind != H5T_FLOAT && kind != H5T_INTEGER) refuse(where, name, "no number, expected one");
  double value = 0;
  read_value(*attribute, H5T_NATIVE_DOUBLE, &value, name, where);
  return value;
}

}  // namespace kalibri::dump::hdf5
