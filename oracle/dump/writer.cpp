// The writer over HDF5: which rows of which tensor are written is kept here, the dataset used last stays open.
#include "oracle/dump/writer.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "oracle/dump/hdf5.hpp"
#include "oracle/dump/partial_file.hpp"

namespace kalibri::dump {

using hdf5::Handle;

namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;  // a chunk is whole rows of about this size
constexpr unsigned kDeflateLevel = 1;
constexpr unsigned kMaxAttributes = 64;  // up to so many stay where HDF5 keeps a checksum of them

struct Tensor {
  ElementType type = ElementType::f32;
  std::vector<hsize_t> shape;
  std::vector<bool> written;  // by row; empty once all are
  std::size_t n_missing = 0;

  [[nodiscard]] std::size_t row_elements() const {
    std::size_t n = 1;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) n *= shape[axis];
    return n;
  }
  [[nodiscard]] std::size_t row_bytes() const { return row_elements() * hdf5::element_bytes(type); }
};

[[noreturn]] void misuse(const std::string& where, const std::string& what) {
  throw std::logic_error("dump writer: " + where + ": " + what);
}

/// An earlier dump may be replaced, and an empty file; what else is called so is somebody's work.
void refuse_foreign(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || std::filesystem::file_size(path, ignored) == 0) return;
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.id(), false, true);
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (file.valid() && hdf5::read_text(file.id(), "format", path.string()) == "kalibri-dump") return;
  throw Error(path.string() + ": exists and is no dump: it is not overwritten; give the dump another name");
}

bool is_path(std::string_view path) {
  while (true) {
    const std::size_t end = path.find('/');
    if (!hdf5::is_name(path.substr(0, end))) return false;
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

/// What names.hpp says about `path` must be so; a tensor of rows by token has a row for each.
void check_known(const std::string& path, const Tensor& tensor, std::size_t n_tokens) {
  const std::optional<TensorName> known = find_tensor(path);
  if (!known) return;
  const bool floating = tensor.type == ElementType::f32 || tensor.type == ElementType::f64;
  const auto n_axes = static_cast<std::size_t>(1 + std::ranges::count(known->dims, ','));
  if (known->floating != floating)
    misuse(path, known->floating ? "integers given, floats expected" : "floats given, integers expected");
  if (tensor.shape.size() != n_axes) misuse(path, "expected the axes " + std::string(known->dims));
  if (known->dims.front() == 'T' && tensor.shape[0] != n_tokens) misuse(path, "expected a row for each token");
}

}  // namespace

struct Writer::Impl {
  PartialFile partial;
  Handle file;
  Handle link_options;  // UTF-8 names, missing groups are made
  Handle prompts;
  std::map<std::string, std::size_t> n_tokens;  // of each prompt
  std::string prompt;                           // the current one
  std::map<std::string, Tensor> tensors;        // by path below /prompts
  Handle dataset;                               // the one used last
  std::string dataset_path;
  bool failed = false;  // what was written is not all there: never to be called complete

  explicit Impl(const std::filesystem::path& path) : partial(path) {}

  void check(bool ok, const std::string& what) {
    if (!ok) {
      failed = true;
      throw Error(partial.path().string() + ": " + what + ": " + hdf5::last_error() +
                  "; make room there or choose another folder, then run again");
    }
  }

  void create();
  void write_header(const Header& header);
  void open_dataset(const std::string& path, const Tensor& tensor);
  void create_dataset(const std::string& path, const Tensor& tensor, const std::string& dims);
  void write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                  std::int64_t first_row, ElementType type, const void* data, std::size_t n_elements);
  void write_hyperslab(const std::string& path, const Tensor& tensor, std::size_t first_row, std::size_t n_rows,
                       const void* data);
};

void Writer::Impl::create() {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.id(), false, true);  // `partial` holds the lock
  // The format of HDF5 1.10 has a checksum over all that is no tensor; each chunk of a tensor has its own.
  H5Pset_libver_bounds(access.id(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  const Handle options(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_attr_phase_change(options.id(), kMaxAttributes, 0);
  file = Handle(H5Fcreate(partial.path().c_str(), H5F_ACC_TRUNC, options.id(), access.id()), H5Fclose);
  check(file.valid(), "cannot be created");

  link_options = Handle(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_char_encoding(link_options.id(), H5T_CSET_UTF8);
  H5Pset_create_intermediate_group(link_options.id(), 1);
  const Handle group_options(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_link_creation_order(group_options.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  prompts = Handle(H5Gcreate2(file.id(), "prompts", link_options.id(), group_options.id(), H5P_DEFAULT), H5Gclose);
  check(prompts.valid(), "cannot be written");
}

void Writer::Impl::write_header(const Header& header) {
  const hid_t root = file.id();
  bool ok = hdf5::write_text(root, "format", "kalibri-dump") && hdf5::write_int(root, "version", 1) &&
            hdf5::write_int(root, "complete", 0) && hdf5::write_int(root, "n_streams", header.n_streams);
  const auto text = [&](const char* name, const std::string& value) {
    if (!hdf5::is_text(value) || value.size() >= hdf5::kMaxTextBytes) {
      throw Error(partial.path().string() + ": attribute " + name + ": no valid UTF-8 text of less than 2^24 bytes");
    }
    ok = ok && hdf5::write_text(root, name, value);
  };
  text("producer", header.producer);
  text("producer_version", header.producer_version);
  text("model_type", header.model_type);
  text("mode", header.mode);
  text("checkpoint_fingerprint", header.checkpoint_fingerprint);
  text("precision", header.precision);
  text("options", header.options);
  check(ok && H5Fflush(root, H5F_SCOPE_GLOBAL) >= 0, "cannot be written");
}

void Writer::Impl::create_dataset(const std::string& path, const Tensor& tensor, const std::string& dims) {
  const Handle options(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(options.id(), false);  // the same numbers are the same bytes
  const int rank = static_cast<int>(tensor.shape.size());
  if (tensor.row_bytes() > 0) {
    std::vector<hsize_t> chunk = tensor.shape;
    chunk[0] = std::clamp<hsize_t>(kChunkBytes / tensor.row_bytes(), 1, tensor.shape[0]);
    H5Pset_chunk(options.id(), rank, chunk.data());
    H5Pset_shuffle(options.id());
    H5Pset_deflate(options.id(), kDeflateLevel);
    H5Pset_fletcher32(options.id());
  }
  const Handle space(H5Screate_simple(rank, tensor.shape.data(), nullptr), H5Sclose);
  const Handle created(H5Dcreate2(prompts.id(), path.c_str(), hdf5::file_type(tensor.type), space.id(),
                                  link_options.id(), options.id(), H5P_DEFAULT),
                       H5Dclose);
  check(created.valid(), path + ": cannot be created");
  check(dims.empty() || hdf5::write_text(created.id(), "dims", dims), path + ": cannot be written");
}

void Writer::Impl::open_dataset(const std::string& path, const Tensor& tensor) {
  if (dataset.valid() && dataset_path == path) return;
  check(dataset.close(), dataset_path + ": cannot be written");
  const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
  H5Pset_chunk_cache(access.id(), 3, std::max(kChunkBytes, tensor.row_bytes()), 1.0);
  dataset = Handle(H5Dopen2(prompts.id(), path.c_str(), access.id()), H5Dclose);
  dataset_path = path;
  check(dataset.valid(), path + ": cannot be opened");
}

void Writer::Impl::write_hyperslab(const std::string& path, const Tensor& tensor, std::size_t first_row,
                                   std::size_t n_rows, const void* data) {
  open_dataset(path, tensor);
  std::vector<hsize_t> start(tensor.shape.size(), 0);
  std::vector<hsize_t> count = tensor.shape;
  start[0] = first_row;
  count[0] = n_rows;
  const Handle rows(H5Dget_space(dataset.id()), H5Sclose);
  const Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  const bool ok =
      H5Sselect_hyperslab(rows.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) >= 0 &&
      H5Dwrite(dataset.id(), hdf5::memory_type(tensor.type), memory.id(), rows.id(), H5P_DEFAULT, data) >= 0;
  check(ok, path + ": cannot be written");
}

void Writer::Impl::write_rows(const std::string& path_in_prompt, std::int64_t n_rows_total,
                              std::span<const std::int64_t> row_dims, std::int64_t first_row, ElementType type,
                              const void* data, std::size_t n_elements) {
  hdf5::start();
  if (prompt.empty()) misuse(path_in_prompt, "no prompt was begun");
  if (!is_path(path_in_prompt)) misuse(path_in_prompt, "no valid path");
  const std::string path = prompt + "/" + path_in_prompt;

  Tensor given{type, {static_cast<hsize_t>(n_rows_total)}, {}, static_cast<std::size_t>(n_rows_total)};
  given.shape.insert(given.shape.end(), row_dims.begin(), row_dims.end());
  if (n_rows_total < 1 || std::ranges::any_of(row_dims, [](std::int64_t size) { return size < 0; })) {
    misuse(path, "a negative size or no rows");
  }
  if (!tensors.contains(path)) {
    const std::optional<TensorName> known = find_tensor(path_in_prompt);
    check_known(path_in_prompt, given, n_tokens.at(prompt));
    create_dataset(path, given, known ? std::string(known->dims) : std::string());
    given.written.assign(given.shape[0], false);
    tensors.emplace(path, given);
  }
  Tensor& tensor = tensors.at(path);
  if (tensor.type != type || tensor.shape != given.shape) misuse(path, "type or shape differs from the first call's");

  // A tensor with an axis of size 0 has no elements: one call stands for all its rows.
  const std::size_t row_elements = tensor.row_elements();
  const std::size_t n_rows = row_elements == 0 ? tensor.shape[0] : n_elements / row_elements;
  const auto first = static_cast<std::size_t>(first_row);
  if (n_rows * row_elements != n_elements) misuse(path, "the data are no whole rows");
  if (first_row < 0 || first > tensor.shape[0] || n_rows > tensor.shape[0] - first) misuse(path, "rows beyond the end");
  for (std::size_t row = first; row < first + n_rows; ++row) {
    if (tensor.n_missing == 0 || tensor.written[row]) misuse(path, "row " + std::to_string(row) + " is written twice");
    tensor.written[row] = true;
    --tensor.n_missing;
  }
  if (tensor.n_missing == 0) tensor.written = {};
  if (n_elements > 0) write_hyperslab(path, tensor, first, n_rows, data);
}

Writer::Writer(const std::filesystem::path& path, const Header& header) {
  hdf5::start();
  refuse_foreign(path);
  impl_ = std::make_unique<Impl>(path);
  impl_->create();
  impl_->write_header(header);
}

Writer::~Writer() = default;

void Writer::begin_prompt(const std::string& name, std::span<const std::int32_t> tokens,
                          const std::string& text_sha256) {
  hdf5::start();
  const std::string where = impl_->partial.path().string() + ": prompt '" + name + "'";
  if (!hdf5::is_name(name)) throw Error(where + ": no valid name: it must be UTF-8, not empty and without '/'");
  if (impl_->n_tokens.contains(name)) throw Error(where + ": two prompts have this name: rename one");
  if (tokens.empty()) throw Error(where + ": no tokens: a prompt has at least one");
  impl_->n_tokens.emplace(name, tokens.size());
  impl_->prompt = name;
  write_rows("tokens", static_cast<std::int64_t>(tokens.size()), {}, 0, tokens);
  const Handle group(H5Gopen2(impl_->prompts.id(), name.c_str(), H5P_DEFAULT), H5Gclose);
  impl_->check(group.valid() && hdf5::write_text(group.id(), "text_sha256", text_sha256), name + ": cannot be written");
}

void Writer::select_prompt(const std::string& name) {
  if (!impl_->n_tokens.contains(name)) misuse(name, "no such prompt was begun");
  impl_->prompt = name;
}

void Writer::write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                        std::int64_t first_row, std::span<const float> data) {
  impl_->write_rows(path, n_rows_total, row_dims, first_row, ElementType::f32, data.data(), data.size());
}

void Writer::write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                        std::int64_t first_row, std::span<const double> data) {
  impl_->write_rows(path, n_rows_total, row_dims, first_row, ElementType::f64, data.data(), data.size());
}

void Writer::write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                        std::int64_t first_row, std::span<const std::int32_t> data) {
  impl_->write_rows(path, n_rows_total, row_dims, first_row, ElementType::i32, data.data(), data.size());
}

void Writer::write_rows(const std::string& path, std::int64_t n_rows_total, std::span<const std::int64_t> row_dims,
                        std::int64_t first_row, std::span<const std::int64_t> data) {
  impl_->write_rows(path, n_rows_total, row_dims, first_row, ElementType::i64, data.data(), data.size());
}

void Writer::describe_schedule(const std::string& schedule, std::int64_t first_position, std::int64_t n_prefilled) {
  hdf5::start();
  if (!hdf5::is_name(schedule)) throw Error("schedule '" + schedule + "': no valid name");
  const std::string path = impl_->prompt + "/decode/" + schedule;
  const std::size_t n_tokens = impl_->n_tokens.at(impl_->prompt);
  if (first_position < 0 || n_prefilled < 0 || static_cast<std::size_t>(n_prefilled) > n_tokens) {
    misuse(path, "first_position or n_prefilled lies outside the prompt");
  }
  const bool exists = impl_->tensors.contains(path + "/logits");
  const Handle group(
      exists ? H5Gopen2(impl_->prompts.id(), path.c_str(), H5P_DEFAULT)
             : H5Gcreate2(impl_->prompts.id(), path.c_str(), impl_->link_options.id(), H5P_DEFAULT, H5P_DEFAULT),
      H5Gclose);
  impl_->check(group.valid() && hdf5::write_int(group.id(), "first_position", first_position) &&
                   hdf5::write_int(group.id(), "n_prefilled", n_prefilled),
               path + ": cannot be written");
}

void Writer::finish(std::int64_t peak_rss_bytes, double wall_s) {
  hdf5::start();
  if (impl_->failed) misuse("finish", "an earlier write failed");
  for (const auto& [path, tensor] : impl_->tensors) {
    if (tensor.n_missing > 0) misuse(path, std::to_string(tensor.n_missing) + " rows were never written");
  }
  Impl& impl = *impl_;
  const hid_t root = impl.file.id();
  impl.check(impl.dataset.close(), impl.dataset_path + ": cannot be written");
  impl.check(hdf5::write_int(root, "peak_rss_bytes", peak_rss_bytes) && hdf5::write_real(root, "wall_s", wall_s) &&
                 hdf5::write_int(root, "complete", 1) && H5Fflush(root, H5F_SCOPE_GLOBAL) >= 0,
             "cannot be written");
  impl.check(impl.prompts.close() && impl.file.close(), "cannot be written");
  impl.partial.publish();
}

}  // namespace kalibri::dump
