// Opens the file and hands out rows; contents.hpp has checked them.
#include "oracle/dump/reader.hpp"

#include <algorithm>
#include <system_error>

#include "oracle/dump/contents.hpp"

namespace kalibri::dump {

using hdf5::Handle;

namespace {

Handle open_file(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const bool unfinished = std::filesystem::exists(where + ".partial", ignored);
    throw Error(where + (unfinished ? ": not there yet: " + where +
                                          ".partial is of a run that was stopped or still goes on; "
                                          "let it finish or run it again"
                                    : ": no such file: give the path of a dump"));
  }
  if (!std::filesystem::is_regular_file(path, ignored))
    throw Error(where + ": no regular file: give the path of a dump");
  if (path.extension() == ".partial") {
    throw Error(where +
                ": unfinished: the run that wrote it was stopped or still goes on; let it finish or run it again");
  }
  if (std::filesystem::file_size(path, ignored) == 0) {
    throw Error(where + ": empty: the run that wrote it was stopped; run it again");
  }
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.id(), false, true);  // reading works on any file system
  Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (!file.valid()) {
    const std::string text = hdf5::last_error();
    if (H5Fis_hdf5(path.c_str()) > 0) {
      throw Error(where + ": truncated or damaged (HDF5: " + text + "): copy it again, or run again what wrote it");
    }
    throw Error(where + ": not a dump (HDF5: " + text + "): give a file that a dump command wrote");
  }
  return file;
}

}  // namespace

struct Reader::Impl {
  std::filesystem::path path;
  Handle file;
  Contents contents;
  Handle dataset;  // the one read last, with its chunk cache
  std::string dataset_path;

  [[noreturn]] void fail(const std::string& at, const std::string& what) const {
    throw Error(path.string() + ": /prompts/" + at + ": " + what);
  }

  template <typename Value>
  std::vector<Value> read(const std::string& at, std::int64_t first_row, std::int64_t n_rows, bool floating,
                          ElementType type);
};

template <typename Value>
std::vector<Value> Reader::Impl::read(const std::string& at, std::int64_t first_row, std::int64_t n_rows, bool floating,
                                      ElementType type) {
  hdf5::start();
  const auto found = contents.datasets.find(at);
  if (found == contents.datasets.end()) fail(at, "no such dataset");
  const DatasetInfo& info = found->second;
  if ((info.type == ElementType::f32 || info.type == ElementType::f64) != floating) {
    fail(at, floating ? "holds integers, expected floats" : "holds floats, expected integers");
  }
  if (first_row < 0 || n_rows < 0 || first_row > info.shape[0] || n_rows > info.shape[0] - first_row) {
    fail(at, "rows [" + std::to_string(first_row) + ", " + std::to_string(first_row) + " + " + std::to_string(n_rows) +
                 ") asked for, but it has " + std::to_string(info.shape[0]));
  }
  if (!dataset.valid() || dataset_path != at) {
    dataset = Handle(H5Dopen2(file.id(), ("prompts/" + at).c_str(), H5P_DEFAULT), H5Dclose);
    dataset_path = at;
  }
  std::size_t n_values = static_cast<std::size_t>(n_rows);
  for (std::size_t axis = 1; axis < info.shape.size(); ++axis) n_values *= static_cast<std::size_t>(info.shape[axis]);
  std::vector<Value> values(n_values);
  if (!dataset.valid() || !read_rows(dataset.id(), info, first_row, n_rows, type, values.data())) {
    fail(at, "not readable (HDF5: " + hdf5::last_error() + "); the file is damaged: make it again");
  }
  return values;
}

Reader::Reader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>()) {
  hdf5::start();
  impl_->path = path;
  impl_->file = open_file(path);
  impl_->contents = read_contents(impl_->file.id(), path.string());
}

Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;

const std::filesystem::path& Reader::path() const { return impl_->path; }
const Header& Reader::header() const { return impl_->contents.header; }
std::int64_t Reader::peak_rss_bytes() const { return impl_->contents.peak_rss_bytes; }
double Reader::wall_s() const { return impl_->contents.wall_s; }
const std::vector<PromptInfo>& Reader::prompts() const { return impl_->contents.prompts; }
const std::vector<std::string>& Reader::unknown() const { return impl_->contents.unknown; }

const PromptInfo* Reader::find_prompt(const std::string& name) const {
  const auto found = std::ranges::find(impl_->contents.prompts, name, &PromptInfo::name);
  return found == impl_->contents.prompts.end() ? nullptr : &*found;
}

std::optional<DatasetInfo> Reader::find(const std::string& prompt, const std::string& path) const {
  const auto found = impl_->contents.datasets.find(prompt + "/" + path);
  return found == impl_->contents.datasets.end() ? std::nullopt : std::optional(found->second);
}

std::vector<double> Reader::read_f64(const std::string& prompt, const std::string& path, std::int64_t first_row,
                                     std::int64_t n_rows) const {
  return impl_->read<double>(prompt + "/" + path, first_row, n_rows, true, ElementType::f64);
}

std::vector<std::int64_t> Reader::read_i64(const std::string& prompt, const std::string& path, std::int64_t first_row,
                                           std::int64_t n_rows) const {
  return impl_->read<std::int64_t>(prompt + "/" + path, first_row, n_rows, false, ElementType::i64);
}

}  // namespace kalibri::dump
