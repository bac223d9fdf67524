// The scan over HDF5's C API.
#include "oracle/dump/scan.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace kalibri::dump {

using hdf5::Handle;

namespace {

constexpr int kMaxRank = 4;
constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMaxDepth = 8;

struct Link {
  std::string name;
  H5L_type_t type;
  std::int64_t creation_order;  // 0 when the group does not keep it
};

extern "C" herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* links) try {
  static_cast<std::vector<Link>*>(links)->push_back({name, info->type, info->corder_valid ? info->corder : 0});
  return 0;
} catch (...) {
  return -1;  // out of memory: H5Literate fails
}

class Scanner {
 public:
  Scanner(hid_t group, std::string where) : where_(std::move(where)) {
    const Handle file(H5Iget_file_id(group), H5Fclose);
    check(file.valid() && H5Fget_filesize(file.id(), &file_bytes_) >= 0, "");
  }

  void visit(hid_t group, const std::string& path, std::size_t depth) {
    H5O_info_t info;
    check(H5Oget_info(group, &info) >= 0, path);
    if (depth > kMaxDepth || !seen_.emplace(info.fileno, info.addr).second) {
      fail(path, "its groups lead back into themselves or too deep; no dump of ours does: make the file again");
    }
    std::vector<Link> links;
    // In HDF5's own order: when it sorts, 1.10 frees memory that is not its own once a checksum is wrong.
    check(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect_link, &links) >= 0, path);
    std::ranges::sort(links, {}, [](const Link& link) { return std::tie(link.creation_order, link.name); });
    for (const Link& link : links) visit_link(group, path, link, depth);
  }

  std::vector<Node> nodes;

 private:
  void visit_link(hid_t group, const std::string& parent, const Link& link, std::size_t depth) {
    if (!hdf5::is_name(link.name)) fail(parent, "holds a name that is no printable UTF-8: rename it");
    const std::string path = parent.empty() ? link.name : parent + "/" + link.name;
    if (link.type != H5L_TYPE_HARD) {
      fail(path, "a soft or external link; a dump holds all its data itself: write the dataset here");
    }
    const Handle object(H5Oopen(group, link.name.c_str(), H5P_DEFAULT), H5Oclose);
    check(object.valid(), path);
    switch (H5Iget_type(object.id())) {
      case H5I_GROUP:
        nodes.push_back({path, true, {}, {}});
        visit(object.id(), path, depth + 1);
        break;
      case H5I_DATASET:
        nodes.push_back(describe(object.id(), path));
        break;
      default:
        nodes.push_back({path, false, {}, "no dataset"});
    }
  }

  Node describe(hid_t dataset, const std::string& path) const {
    Node node{path, false, {}, {}};
    const Handle type(H5Dget_type(dataset), H5Tclose);
    const Handle space(H5Dget_space(dataset), H5Sclose);
    const Handle options(H5Dget_create_plist(dataset), H5Pclose);
    check(type.valid() && space.valid() && options.valid(), path);
    const std::optional<ElementType> element = hdf5::element_type(type.id());
    if (!element) {
      node.problem = "neither 32- or 64-bit floats nor 32- or 64-bit signed integers: write it as one of these";
      return node;
    }
    node.info.type = *element;
    const int rank = H5Sget_simple_extent_ndims(space.id());
    if (H5Sget_simple_extent_type(space.id()) != H5S_SIMPLE || rank < 1 || rank > kMaxRank) {
      node.problem = "expected 1 to " + std::to_string(kMaxRank) + " axes";
      return node;
    }
    std::vector<hsize_t> shape(static_cast<std::size_t>(rank));
    H5Sget_simple_extent_dims(space.id(), shape.data(), nullptr);
    std::uint64_t row_elements = 1;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const std::uint64_t limit = axis == 0 ? kMaxRows : kMaxRowElements;
      if (axis > 0)
        row_elements *= std::min<std::uint64_t>(shape[axis], limit + 1);  // at most 2^24 * 2^25: no overflow
      if (shape[axis] > limit || row_elements > limit) {
        node.problem = "too large: at most 2^24 rows of 2^24 elements";
        return node;
      }
      node.info.shape.push_back(static_cast<std::int64_t>(shape[axis]));
    }
    if (row_elements * shape[0] > 0)
      node.problem = find_storage_problem(dataset, space.id(), options.id(), shape, *element);
    return node;
  }

  /// Why the elements are not all in this file, in a form that we can read; empty when they are.
  std::string find_storage_problem(hid_t dataset, hid_t space, hid_t options, const std::vector<hsize_t>& shape,
                                   ElementType element) const {
    if (H5Pget_external_count(options) != 0) return "its data lie in another file: write them into this one";
    for (int i = 0; i < H5Pget_nfilters(options); ++i) {
      unsigned flags = 0;
      unsigned config = 0;
      std::size_t n_values = 0;
      const auto filter =
          H5Pget_filter2(options, static_cast<unsigned>(i), &flags, &n_values, nullptr, 0, nullptr, &config);
      if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32) {
        return "filter " + std::to_string(filter) + " is not supported: compress with gzip or not at all";
      }
    }
    std::uint64_t bytes = hdf5::element_bytes(element);
    for (const hsize_t size : shape) bytes *= size;  // below 2^51
    const std::string missing = "claims data that the file does not hold: it was not written to its end, or is damaged";
    switch (H5Pget_layout(options)) {
      case H5D_COMPACT:
        return {};
      case H5D_CONTIGUOUS: {
        const haddr_t begin = H5Dget_offset(dataset);
        const bool held = begin != HADDR_UNDEF && begin <= file_bytes_ && bytes <= file_bytes_ - begin;
        return held ? std::string() : missing;
      }
      case H5D_CHUNKED: {
        std::vector<hsize_t> chunk(shape.size());
        const int rank = H5Pget_chunk(options, static_cast<int>(chunk.size()), chunk.data());
        if (rank != static_cast<int>(chunk.size()) || std::ranges::count(chunk, 0) > 0)
          return "its chunks have no shape";
        std::uint64_t n_expected = 1;
        std::uint64_t chunk_bytes = hdf5::element_bytes(element);
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
          n_expected *= (shape[axis] + chunk[axis] - 1) / chunk[axis];
          if (chunk[axis] > kMaxChunkBytes / chunk_bytes) return "chunks above 1 GiB: use smaller ones";
          chunk_bytes *= chunk[axis];
        }
        hsize_t n_chunks = 0;
        const bool held = H5Dget_num_chunks(dataset, space, &n_chunks) >= 0 && n_chunks == n_expected;
        return held ? std::string() : missing;
      }
      default:
        return "a virtual dataset; a dump holds all its data itself: write them into this file";
    }
  }

  [[noreturn]] void fail(const std::string& path, const std::string& what) const {
    throw Error(where_ + (path.empty() ? "" : "/" + path) + ": " + what);
  }
  void check(bool ok, const std::string& path) const {
    if (!ok) fail(path, "not readable (HDF5: " + hdf5::last_error() + "); the file is damaged: make it again");
  }

  std::string where_;
  hsize_t file_bytes_ = 0;
  std::set<std::pair<unsigned long, haddr_t>> seen_;  // groups: file number, address
};

}  // namespace

std::vector<Node> scan(hid_t group, const std::string& where) {
  Scanner scanner(group, where);
  scanner.visit(group, "", 0);
  return std::move(scanner.nodes);
}

}  // namespace kalibri::dump
