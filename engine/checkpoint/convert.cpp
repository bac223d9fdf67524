#include "engine/checkpoint/convert.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>
#include <string_view>

#include "engine/base/error.hpp"
#include "engine/base/mapped_file.hpp"
#include "engine/checkpoint/output_file.hpp"

namespace kalibri::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kUnfinished = "unfinished";
constexpr const char* kConfig = "config.json";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::array kCopied = {"tokenizer.json",         "tokenizer_config.json",    "chat_template.jinja",
                                "generation_config.json", "preprocessor_config.json", "LICENSE"};

std::span<const std::byte> bytes_of(const void* data, std::int64_t n) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(n)};
}

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
      case ConvertJob::Kind::copy: {
        const auto from =
            job.tensor->bytes.subspan(static_cast<std::size_t>(job.first), static_cast<std::size_t>(job.n));
        put(job.out, job.first_out, from);
        forget_pages(from);
        return;
      }
      case ConvertJob::Kind::widen:
        return widen(job);
      case ConvertJob::Kind::round:
        round(job);
        break;
      case ConvertJob::Kind::quantise:
        quantise(job);
        break;
    }
    const std::int64_t row_bytes = kernels::row_bytes(job.matrix);
    forget_pages(bytes_of(static_cast<const std::byte*>(job.matrix.data) + job.first * row_bytes, job.n * row_bytes));
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

  void widen(const ConvertJob& job) {
    const std::vector<float> values = checkpoint_.small_tensor(job.name, job.tensor->shape);
    put(job.out, 0, std::as_bytes(std::span(values)));
  }

  [[noreturn]] void refuse(const ConvertJob& job, std::int64_t row) const {
    checkpoint_.refuse({checkpoint_.find(job.name)->file->path().filename().string(), job.name,
                        fmt::format("NaN, infinity or a range beyond f32 in row {}, expected numbers", row)});
  }

  void round(const ConvertJob& job) {
    const std::int64_t n_cols = job.matrix.n_cols;
    std::vector<std::uint16_t> values(static_cast<std::size_t>(job.n * n_cols));
    for (std::int64_t i = 0; i < job.n; ++i) {
      if (!kernels::round_row(job.matrix, job.first + i, values.data() + i * n_cols)) refuse(job, job.first + i);
    }
    put(job.out, job.first_out * n_cols * 2, std::as_bytes(std::span(values)));
  }

  void quantise(const ConvertJob& job) {
    kernels::AffineTarget target = plan_.target;
    target.bits = job.bits;
    const std::int64_t n_codes = job.matrix.n_cols * job.bits / 8;
    const std::int64_t n_groups = job.matrix.n_cols / target.group_size;
    std::vector<unsigned char> codes(static_cast<std::size_t>(job.n * n_codes));
    std::vector<std::uint16_t> scales(static_cast<std::size_t>(job.n * n_groups));
    std::vector<std::uint16_t> biases(scales.size());
    for (std::int64_t i = 0; i < job.n; ++i) {
      if (!kernels::quantise_row(job.matrix, job.first + i, target, codes.data() + i * n_codes,
                                 scales.data() + i * n_groups, biases.data() + i * n_groups)) {
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

/// What an interrupted conversion may have moved to its place already.
void remove_leftovers(const fs::path& out) {
  std::vector<fs::path> leftovers = {out / kUnfinished};
  for (const auto& entry : fs::directory_iterator(out)) {
    if (is_shard_name(entry.path().filename().string())) leftovers.push_back(entry.path());
  }
  for (const char* name : {kConfig, kIndex}) leftovers.push_back(out / name);
  for (const char* name : kCopied) leftovers.push_back(out / name);
  for (const fs::path& path : leftovers) fs::remove_all(path);
}

/// Removes what was written, unless it was kept.
class Cleaner {
 public:
  Cleaner(const fs::path& out, bool made_folder) : out_(out), made_folder_(made_folder) {}
  ~Cleaner() {
    if (is_kept_) return;
    try {
      remove_leftovers(out_);
      if (made_folder_) fs::remove(out_);
    } catch (const fs::filesystem_error&) {  // the first error is on its way to the caller
    }
  }
  Cleaner(const Cleaner&) = delete;
  Cleaner& operator=(const Cleaner&) = delete;
  void keep() { is_kept_ = true; }

 private:
  const fs::path& out_;
  bool made_folder_;
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

/// config.json last: without it the shards are no checkpoint.
void move_into_place(const ConvertPlan& plan, const fs::path& folder, const fs::path& out) {
  for (const ConvertShard& shard : plan.shards) fs::rename(folder / (shard.name + ".part"), out / shard.name);
  for (const char* name : kCopied) {
    if (fs::exists(folder / name)) fs::rename(folder / name, out / name);
  }
  fs::rename(folder / kIndex, out / kIndex);
  fs::rename(folder / kConfig, out / kConfig);
  fs::remove(folder);
}

}  // namespace

void check_output_folder(const fs::path& out, std::int64_t n_bytes) {
  if (fs::exists(out) && !fs::is_directory(out)) {
    throw Error(ErrorCode::file, out.string() + ": is no folder; name one that does not exist or is empty");
  }
  if (fs::exists(out) && !fs::is_directory(out / kUnfinished)) {
    for (const auto& entry : fs::directory_iterator(out)) {
      const std::string name = entry.path().filename().string();
      throw Error(ErrorCode::file,
                  fmt::format("{}: holds {}{}; name a folder that does not exist or is empty", out.string(), name,
                              name.ends_with(".safetensors") ? ", a checkpoint's shard" : ""));
    }
  }
  fs::path existing = fs::absolute(out);
  while (!fs::exists(existing)) existing = existing.parent_path();
  const auto n_free = static_cast<std::int64_t>(fs::space(existing).available);
  if (n_bytes > n_free) {
    throw Error(ErrorCode::file,
                fmt::format("{}: {:.2f} GB will be written, but {:.2f} GB are free there; make room, "
                            "or choose another place",
                            out.string(), static_cast<double>(n_bytes) * 1e-9, static_cast<double>(n_free) * 1e-9));
  }
}

void convert(const Checkpoint& checkpoint, const ConvertPlan& plan, const fs::path& out, ThreadPool& pool,
             const std::function<void(std::int64_t n_bytes)>& progress) {
  try {
    if (fs::is_directory(out / kUnfinished)) remove_leftovers(out);
    check_output_folder(out, plan.n_output_bytes);
    const bool is_new = fs::create_directories(out);
    Cleaner cleaner(out, is_new);
    const fs::path folder = out / kUnfinished;
    fs::create_directory(folder);
    write_everything(checkpoint, plan, folder, pool, progress);
    move_into_place(plan, folder, out);
    cleaner.keep();
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::file, fmt::format("{}: {}", error.path1().string(), error.code().message()));
  }
}

}  // namespace kalibri::checkpoint
