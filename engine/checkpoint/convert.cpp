#include "engine/checkpoint/convert.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>
#include <string_view>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/checkpoint/output_file.hpp"
#include "engine/checkpoint/values.hpp"

namespace kalibri::checkpoint {

namespace fs = std::filesystem;

namespace {

using kernels::MatrixView;

constexpr const char* kUnfinished = ".kalibri-convert";  // in the output, until it is whole
constexpr const char* kConfig = "config.json";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::array kCopied = {"tokenizer.json",
                                "tokenizer_config.json",
                                "special_tokens_map.json",
                                "added_tokens.json",
                                "tokenizer.model",
                                "vocab.json",
                                "merges.txt",
                                "chat_template.jinja",
                                "chat_template.json",
                                "generation_config.json",
                                "preprocessor_config.json",
                                "video_preprocessor_config.json",
                                "processor_config.json",
                                "LICENSE",
                                "LICENSE.md",
                                "LICENSE.txt",
                                "NOTICE"};

/// A job's rows in memory, as a matrix of their own.
struct Rows {
  std::vector<std::byte> data;
  std::vector<float> scale_inv;
  MatrixView matrix;
};

/// Makes the jobs' bytes and puts them where they belong.
class Writer {
 public:
  Writer(const ConvertPlan& plan, const Checkpoint& checkpoint, const fs::path& folder)
      : plan_(plan), checkpoint_(checkpoint) {
    for (const ConvertShard& shard : plan.shards) {
      files_.emplace_back(folder / (shard.name + ".part"));
      files_.back().write(0, std::as_bytes(std::span(shard.header)));
    }
  }

  void run(const ConvertJob& job) {
    switch (job.kind) {
      case ConvertJob::Kind::copy:
        return put(job.out, job.first_out, read_bytes(*job.tensor, job.first, job.n));
      case ConvertJob::Kind::widen:
        return widen(job);
      case ConvertJob::Kind::round:
        return round(job, read_rows(job).matrix);
      case ConvertJob::Kind::quantise:
        return quantise(job, read_rows(job).matrix);
    }
  }

  void finish() {
    for (OutputFile& file : files_) file.finish();
  }

 private:
  void put(std::size_t out, std::int64_t offset, std::span<const std::byte> bytes) {
    const OutputTensor& tensor = plan_.tensors[out];
    const auto n_header = static_cast<std::int64_t>(plan_.shards[tensor.shard].header.size());
    files_[tensor.shard].write(n_header + tensor.offset + offset, bytes);
  }

  [[nodiscard]] Rows read_rows(const ConvertJob& job) const {
    const TensorView& tensor = *checkpoint_.find(job.name);
    const std::int64_t row_bytes = kernels::row_bytes(job.matrix);
    const std::int64_t first = static_cast<const std::byte*>(job.matrix.data) - tensor.bytes.data();
    Rows rows{read_bytes(tensor, first + job.first * row_bytes, job.n * row_bytes), {}, job.matrix};
    rows.matrix.n_rows = job.n;
    rows.matrix.data = rows.data.data();
    if (job.matrix.format == kernels::Format::e4m3_block) {  // job.first is the first row of a block
      rows.scale_inv = read_widened(*checkpoint_.find(scale_name(job.name)));
      const std::int64_t blocks_per_row = (job.matrix.n_cols + kernels::kFp8Block - 1) / kernels::kFp8Block;
      rows.matrix.scale_inv = rows.scale_inv.data() + job.first / kernels::kFp8Block * blocks_per_row;
    }
    return rows;
  }

  void widen(const ConvertJob& job) {
    const std::vector<float> values = read_widened(*job.tensor);
    put(job.out, 0, std::as_bytes(std::span(values)));
  }

  [[noreturn]] void refuse(const ConvertJob& job, std::int64_t row) const {
    checkpoint_.refuse({checkpoint_.find(job.name)->file->path().filename().string(), job.name,
                        fmt::format("NaN, infinity or a range beyond f32 in row {}, expected numbers", row)});
  }

  void round(const ConvertJob& job, const MatrixView& rows) {
    const std::int64_t n_cols = rows.n_cols;
    std::vector<std::uint16_t> values(static_cast<std::size_t>(job.n * n_cols));
    for (std::int64_t i = 0; i < job.n; ++i) {
      if (!kernels::round_row(rows, i, values.data() + i * n_cols)) refuse(job, job.first + i);
    }
    put(job.out, job.first_out * n_cols * 2, std::as_bytes(std::span(values)));
  }

  void quantise(const ConvertJob& job, const MatrixView& rows) {
    kernels::AffineTarget target = plan_.target;
    target.bits = job.bits;
    const std::int64_t n_codes = rows.n_cols * job.bits / 8;
    const std::int64_t n_groups = rows.n_cols / target.group_size;
    std::vector<unsigned char> codes(static_cast<std::size_t>(job.n * n_codes));
    std::vector<std::uint16_t> scales(static_cast<std::size_t>(job.n * n_groups));
    std::vector<std::uint16_t> biases(scales.size());
    for (std::int64_t i = 0; i < job.n; ++i) {
      if (!kernels::quantise_row(rows, i, target, codes.data() + i * n_codes, scales.data() + i * n_groups,
                                 biases.data() + i * n_groups)) {
        refuse(job, job.first + i);
      }
    }
    put(job.out, job.first_out * n_codes, std::as_bytes(std::span(codes)));
    put(job.out + 1, job.first_out * n_groups * 2, std::as_bytes(std::span(scales)));
    put(job.out + 2, job.first_out * n_groups * 2, std::as_bytes(std::span(biases)));
  }

  const ConvertPlan& plan_;
  const Checkpoint& checkpoint_;
  std::vector<OutputFile> files_;  // by shard
};

bool is_shard_name(std::string_view name) { return name.starts_with("model") && name.ends_with(".safetensors"); }

/// What a conversion that did not end may have moved to its place already, and what its folder holds.
void remove_leftovers(const fs::path& out) {
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(out)) {
    if (is_shard_name(entry.path().filename().string())) leftovers.push_back(entry.path());
  }
  for (const char* name : {kConfig, kIndex}) leftovers.push_back(out / name);
  for (const char* name : kCopied) leftovers.push_back(out / name);
  for (const auto& entry : fs::directory_iterator(out / kUnfinished)) leftovers.push_back(entry.path());
  for (const fs::path& path : leftovers) fs::remove_all(path);
}

/// Whether a conversion into `out` has not ended: config.json comes last.
bool is_unfinished(const fs::path& out) { return fs::is_directory(out / kUnfinished) && !fs::exists(out / kConfig); }

/// Removes what was written, unless it was kept.
class Cleaner {
 public:
  Cleaner(const fs::path& out, bool made_out) : out_(out), made_out_(made_out) {}
  ~Cleaner() {
    if (is_kept_) return;
    try {
      remove_leftovers(out_);
      fs::remove(out_ / kUnfinished);
      if (made_out_) fs::remove(out_);
    } catch (const fs::filesystem_error&) {  // the first error is on its way to the caller
    }
  }
  Cleaner(const Cleaner&) = delete;
  Cleaner& operator=(const Cleaner&) = delete;
  void keep() { is_kept_ = true; }

 private:
  const fs::path& out_;
  bool made_out_;
  bool is_kept_ = false;
};

void copy_beside(const fs::path& from, const fs::path& to) {
  for (const char* name : kCopied) {
    if (!fs::is_regular_file(from / name)) continue;
    const MappedFile file(from / name);
    const auto* text = reinterpret_cast<const char*>(file.bytes().data());
    write_file(to / name, {text, file.bytes().size()});
  }
}

void write_everything(const Checkpoint& checkpoint, const ConvertPlan& plan, const fs::path& folder, ThreadPool& pool,
                      const std::function<void(std::int64_t)>& progress) {
  Writer writer(plan, checkpoint, folder);
  std::mutex mutex;
  std::int64_t n_done = 0;
  pool.parallel_for(static_cast<std::int64_t>(plan.jobs.size()), [&](std::int64_t i, int) {
    const ConvertJob& job = plan.jobs[static_cast<std::size_t>(i)];
    writer.run(job);
    const std::lock_guard lock(mutex);
    progress(n_done += job.n_source_bytes);
  });
  writer.finish();
  copy_beside(checkpoint.directory(), folder);
  write_file(folder / kIndex, plan.index);
  write_file(folder / kConfig, plan.config);
}

/// config.json last, and only when the others have reached the disk: without it the shards are no checkpoint.
void move_into_place(const ConvertPlan& plan, const fs::path& folder, const fs::path& out) {
  for (const ConvertShard& shard : plan.shards) fs::rename(folder / (shard.name + ".part"), out / shard.name);
  for (const char* name : kCopied) {
    if (fs::exists(folder / name)) fs::rename(folder / name, out / name);
  }
  fs::rename(folder / kIndex, out / kIndex);
  sync_folder(out);
  fs::rename(folder / kConfig, out / kConfig);
  fs::remove(folder);
  sync_folder(out);
}

[[noreturn]] void refuse_output(const fs::path& out, const std::string& text) {
  throw Error(ErrorCode::file, fmt::format("{}: {}", out.string(), text));
}

void check_output_folder(const fs::path& out, const fs::path& source) {
  if (!fs::exists(out)) return;
  constexpr const char* kExpected = "name a folder that does not exist or is empty";
  if (!fs::is_directory(out)) refuse_output(out, fmt::format("is no folder; {}", kExpected));
  if (fs::equivalent(out, source)) refuse_output(out, fmt::format("is the checkpoint to convert; {}", kExpected));
  if (is_unfinished(out)) return;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    const bool is_shard = name.ends_with(".safetensors");
    refuse_output(out, fmt::format("holds {}{}; {}", name, is_shard ? ", a checkpoint's shard" : "", kExpected));
  }
}

/// Of all files together.
std::int64_t n_bytes_to_write(const ConvertPlan& plan, const fs::path& source) {
  std::size_t n = static_cast<std::size_t>(plan.n_output_bytes) + plan.index.size() + plan.config.size();
  for (const ConvertShard& shard : plan.shards) n += shard.header.size();
  for (const char* name : kCopied) {
    if (fs::is_regular_file(source / name)) n += fs::file_size(source / name);
  }
  return static_cast<std::int64_t>(n);
}

}  // namespace

void check_room(const fs::path& out, std::int64_t n_bytes) {
  fs::path existing = fs::absolute(out);
  while (!fs::exists(existing)) existing = existing.parent_path();
  const auto n_free = static_cast<std::int64_t>(fs::space(existing).available);
  if (n_bytes <= n_free) return;
  refuse_output(
      out, fmt::format("{:.3f} GB will be written, but {:.3f} GB are free there; make room, or choose another place",
                       static_cast<double>(n_bytes) * 1e-9, static_cast<double>(n_free) * 1e-9));
}

bool convert(const Checkpoint& checkpoint, const ConvertPlan& plan, const fs::path& out, ThreadPool& pool,
             const std::function<void(std::int64_t n_bytes)>& progress) {
  try {
    check_output_folder(out, checkpoint.directory());
    const bool starts_again = is_unfinished(out);
    if (!starts_again) check_room(out, n_bytes_to_write(plan, checkpoint.directory()));
    const bool is_new = fs::create_directories(out);
    const fs::path folder = out / kUnfinished;
    fs::create_directory(folder);
    const FolderLock lock(folder);
    if (fs::exists(out / kConfig)) {  // another process has just finished
      fs::remove(folder);
      check_output_folder(out, checkpoint.directory());
    }
    Cleaner cleaner(out, is_new);
    if (starts_again) {
      remove_leftovers(out);
      check_room(out, n_bytes_to_write(plan, checkpoint.directory()));
    }
    write_everything(checkpoint, plan, folder, pool, progress);
    move_into_place(plan, folder, out);
    cleaner.keep();
    return starts_again;
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::file, fmt::format("{}: {}", error.path1().string(), error.code().message()));
  }
}

}  // namespace kalibri::checkpoint
