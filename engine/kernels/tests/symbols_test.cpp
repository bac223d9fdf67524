// What the vector files export: an inline function compiled with AVX-512 that the linker took for everybody's would
// crash on a machine without it, so each file may define one symbol, its table, and none that is weak.
#include <elf.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "engine/kernels/tests/support.hpp"

namespace kalibri::kernels {
namespace {

struct Symbols {
  std::vector<std::string> global;
  std::vector<std::string> weak;
};

template <class T>
T read_at(const std::string& bytes, std::size_t offset) {
  REQUIRE(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Symbols that an ELF64 object defines for other files.
Symbols defined_symbols(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  REQUIRE(std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0);
  const auto section = [&](std::size_t i) {
    return read_at<Elf64_Shdr>(bytes, header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  Symbols symbols;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr table = section(i);
    if (table.sh_type != SHT_SYMTAB) continue;
    const std::size_t names = section(table.sh_link).sh_offset;
    for (std::size_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read_at<Elf64_Sym>(bytes, table.sh_offset + at);
      if (symbol.st_shndx == SHN_UNDEF) continue;
      const std::string name = bytes.data() + names + symbol.st_name;
      if (ELF64_ST_BIND(symbol.st_info) == STB_WEAK) symbols.weak.push_back(name);
      if (ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL) symbols.global.push_back(name);
    }
  }
  return symbols;
}

TEST_CASE("each vector file defines its table and nothing else that another file could call") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  KALIBRI_SKIP("sanitizers add symbols of their own");
#endif
  std::istringstream paths(KALIBRI_VECTOR_OBJECTS);
  int n_files = 0;
  for (std::string path; std::getline(paths, path, ':'); ++n_files) {
    INFO(path);
    const Symbols symbols = defined_symbols(path);
    CHECK(symbols.weak.empty());
    REQUIRE(symbols.global.size() == 1);
    CHECK_THAT(symbols.global[0], Catch::Matchers::ContainsSubstring("Kernels"));
  }
  CHECK(n_files > 0);
}

}  // namespace
}  // namespace kalibri::kernels
