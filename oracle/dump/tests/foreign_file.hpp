// A file as another producer makes it with HDF5 alone: the least that is a valid dump, to be changed by a test. It
// shares no code with the writer.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "oracle/dump/hdf5.hpp"

namespace kalibri::dump::test {

class ForeignFile {
 public:
  /// Root attributes format, version and complete; prompt "p" with 3 tokens and logits [3, 4].
  explicit ForeignFile(const std::filesystem::path& path, H5F_libver_t version = H5F_LIBVER_EARLIEST) {
    hdf5::start();
    const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_libver_bounds(access.id(), version, H5F_LIBVER_V110);
    file_ = hdf5::Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()), H5Fclose);
    attribute("/", "format", "kalibri-dump");
    attribute("/", "version", 1);
    attribute("/", "complete", 1);
    group("prompts/p");
    dataset("prompts/p/tokens", H5T_STD_I32LE, {3});
    dataset("prompts/p/logits", H5T_IEEE_F32LE, {3, 4});
  }

  [[nodiscard]] hid_t id() const { return file_.id(); }

  void group(const std::string& path) const {
    const hdf5::Handle options = intermediate_groups();
    const hdf5::Handle made(H5Gcreate2(id(), path.c_str(), options.id(), H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  }
  void remove(const std::string& path) const { H5Ldelete(id(), path.c_str(), H5P_DEFAULT); }
  void replace(const std::string& path, hid_t type, const std::vector<hsize_t>& shape) const {
    remove(path);
    dataset(path, type, shape);
  }
  void attribute(const char* object, const char* name, const std::string& value) const {
    const hdf5::Handle at(H5Oopen(id(), object, H5P_DEFAULT), H5Oclose);
    H5Adelete(at.id(), name);
    hdf5::write_text(at.id(), name, value);
  }
  void attribute(const char* object, const char* name, int value) const {
    const hdf5::Handle at(H5Oopen(id(), object, H5P_DEFAULT), H5Oclose);
    H5Adelete(at.id(), name);
    hdf5::write_int(at.id(), name, value);
  }
  /// A dataset of zeros, or with `values` (as doubles, converted), or with no data at all.
  void dataset(const std::string& path, hid_t type, const std::vector<hsize_t>& shape,
               std::vector<double> values = {}) const {
    const hdf5::Handle made = declare(path, type, shape, H5P_DEFAULT);
    std::size_t n = 1;
    for (const hsize_t size : shape) n *= size;
    values.resize(n);
    H5Dwrite(made.id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }
  hdf5::Handle declare(const std::string& path, hid_t type, const std::vector<hsize_t>& shape, hid_t options) const {
    const hdf5::Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
    const hdf5::Handle links = intermediate_groups();
    return {H5Dcreate2(id(), path.c_str(), type, space.id(), links.id(), options, H5P_DEFAULT), H5Dclose};
  }

 private:
  static hdf5::Handle intermediate_groups() {
    hdf5::Handle options(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(options.id(), 1);
    return options;
  }

  hdf5::Handle file_;
};

/// Little endian, as most write it.
inline hid_t f32() { return H5T_IEEE_F32LE; }
inline hid_t i32() { return H5T_STD_I32LE; }

/// Files, groups, datasets, types and attributes that are open in this process: also those that a full
/// disk kept HDF5 from closing, so a test counts from where it began.
inline auto n_open() { return H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL); }

/// A change that must make the reader refuse a file.
struct Case {
  const char* what;
  std::function<void(const ForeignFile&)> change;
  const char* message;  // part of the error's text
};

void check_refused(std::span<const Case> cases);

}  // namespace kalibri::dump::test
