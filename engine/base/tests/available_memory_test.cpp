#include "engine/base/available_memory.hpp"

#include <filesystem>
#include <string>

#include "fixtures/catch.hpp"
#include "fixtures/safetensors_writer.hpp"
#include "fixtures/temp_directory.hpp"

namespace kalibri {
namespace {

namespace fs = std::filesystem;

/// A made-up proc and sys; 1,000 KiB are available.
class System {
 public:
  System() { write("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 5 kB\nMemAvailable:   1000 kB\nBuffers: 7 kB\n"); }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_.path() / file).parent_path());
    fixtures::write_file(root_.path() / file, text);
  }
  void group2(const fs::path& group, const std::string& limit, const std::string& usage,
              const std::string& stat = "anon 5\n") const {
    const fs::path folder = fs::path("sys/fs/cgroup") / group;
    write(folder / "memory.max", limit + "\n");
    write(folder / "memory.current", usage + "\n");
    write(folder / "memory.stat", stat);
  }
  [[nodiscard]] std::int64_t available() const { return available_memory(root_.path()); }

 private:
  fixtures::TempDirectory root_;
};

constexpr std::int64_t kSystem = 1000 * 1024;

TEST_CASE("without control groups the system's own figure counts, and without that nothing is known") {
  CHECK(System().available() == kSystem);
  const fixtures::TempDirectory nothing;
  CHECK(available_memory(nothing.path()) == 0);
  CHECK(available_memory() > 0);
}

TEST_CASE("the tightest group on the way up counts, files that it has cached as free") {
  const System system;
  system.write("proc/self/cgroup", "1:cpu:/elsewhere\n0::/outer/inner\n");
  system.group2("", "max", "123");
  system.group2("outer", "900000", "500000");
  system.group2("outer/inner", "max", "1");
  CHECK(system.available() == 400000);
  system.group2("outer/inner", "300000", "250000", "anon 9\ninactive_file 1000\nfile 777\nactive_file 200\n");
  CHECK(system.available() == 51200);
  system.group2("outer/inner", "300000", "350000");
  CHECK(system.available() == 0);
  system.group2("outer/inner", "999999999", "1");
  CHECK(system.available() == 400000);
  system.group2("outer", "max", "500000");
  CHECK(system.available() == kSystem);
}

TEST_CASE("what a group is throttled at counts as its limit where it is the smaller one") {
  const System system;
  system.write("proc/self/cgroup", "0::/outer/inner\n");
  system.group2("outer", "max", "200000");
  system.write("sys/fs/cgroup/outer/memory.high", "300000\n");
  system.group2("outer/inner", "max", "1");
  system.write("sys/fs/cgroup/outer/inner/memory.high", "max\n");
  CHECK(system.available() == 100000);
  system.group2("outer", "250000", "200000");
  CHECK(system.available() == 50000);
}

TEST_CASE("a group that is seen from inside has its limit where groups are mounted") {
  const System system;
  system.write("proc/self/cgroup", "0::/unseen/from/here\n");
  system.group2("", "700000", "100000");
  CHECK(system.available() == 600000);
}

TEST_CASE("groups of the first version count as well, and those that are not about memory do not") {
  const System system;
  system.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/a\n");
  system.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "800000\n");
  system.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "300000\n");
  system.write("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 5\ntotal_inactive_file 1000\n");
  CHECK(system.available() == 501000);
  // Unlimited as the first version writes it, with so much cached that the sum would overflow.
  system.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  system.write("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 500000\n");
  CHECK(system.available() == kSystem);
  system.write("proc/self/cgroup", "4:memoryless:/a\nbroken\n");
  CHECK(system.available() == kSystem);
}

}  // namespace
}  // namespace kalibri
