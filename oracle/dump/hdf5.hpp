// The little of HDF5's C API that writer and reader share: handles that close themselves, its errors as text, the
// mapping of element types, and attributes of one value. Private to this folder.
#pragma once

#define H5_USE_110_API  // later versions keep these names
#include <hdf5.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "oracle/dump/names.hpp"

namespace kalibri::dump::hdf5 {

/// Owns one HDF5 identifier.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close closer) : id_(id), close_(closer) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    close();
    id_ = std::exchange(other.id_, H5I_INVALID_HID);
    close_ = other.close_;
    return *this;
  }
  ~Handle() { close(); }

  [[nodiscard]] bool valid() const { return id_ >= 0; }
  [[nodiscard]] hid_t id() const { return id_; }
  /// Closes now; false when HDF5 could not, for example because the last data could not be written.
  bool close() { return id_ < 0 || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Comes before all other calls: turns HDF5's own printing of errors off for this thread, and its clean-up at exit off
/// for the process (it crashes when a full disk kept a file from being closed; Handle closes all that we open).
void start();

/// What HDF5 said about the call that just failed, in one line: the most specific message.
std::string last_error();

/// The type in memory, and in a file that we write (little endian).
hid_t memory_type(ElementType type);
hid_t file_type(ElementType type);
std::size_t element_bytes(ElementType type);

/// The element type that `type` is, of either byte order; nothing for all others.
std::optional<ElementType> element_type(hid_t type);

/// Texts are shorter.
inline constexpr std::size_t kMaxTextBytes = std::size_t{1} << 24;

/// Well-formed UTF-8 without control characters other than newline and tab.
bool is_text(std::string_view text);

/// A text of one line that can name a link: not empty, not ".", no '/'.
bool is_name(std::string_view text);

/// Attributes of one value on the group or dataset `object`. A write returns false when HDF5 failed. A text is written
/// with a fixed length, because HDF5 keeps no checksum of one of variable length.
bool write_text(hid_t object, const char* name, const std::string& value);
bool write_int(hid_t object, const char* name, std::int64_t value);
bool write_real(hid_t object, const char* name, double value);

/// Nothing when the attribute is absent. Throws Error(`where`: attribute …) when it is of another kind or not one
/// value. Text may be of fixed or variable length; an integer may be a boolean as h5py writes it; a real may be an
/// integer.
std::optional<std::string> read_text(hid_t object, const char* name, const std::string& where);
std::optional<std::int64_t> read_int(hid_t object, const char* name, const std::string& where);
std::optional<double> read_real(hid_t object, const char* name, const std::string& where);

}  // namespace kalibri::dump::hdf5
