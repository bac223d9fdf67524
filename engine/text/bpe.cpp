#include "engine/text/bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "engine/base/error.hpp"
#include "engine/text/printable.hpp"
#include "engine/text/symbols.hpp"

namespace kalibri::text {
namespace {

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
}

}  // namespace

Bpe::Bpe(const TokenizerFile& file, const std::filesystem::path& path) {
  const auto id_of = [&](const std::string& symbols, const char* what, std::size_t number) {
    const auto found = file.vocab.find(symbols);
    if (found == file.vocab.end()) {
      throw Error(ErrorCode::format, fmt::format("{}: {} {}: '{}' has no entry in model.vocab, expected one",
                                                 path.string(), what, number, printable(symbols)));
    }
    return found->second;
  };
  for (std::size_t byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_of(byte_symbol(static_cast<unsigned char>(byte)), "the symbol of byte", byte);
  }
  const std::size_t n_slots = std::bit_ceil(2 * file.merges.size() + 2);
  slots_.assign(n_slots, Slot{0, kNone});
  shift_ = 64 - std::countr_zero(n_slots);
  results_.reserve(file.merges.size());
  for (const auto& [left, right] : file.merges) {
    const std::size_t rank = results_.size();
    const char* const what = "model.merges: entry";
    const std::uint64_t pair = pair_of(id_of(left, what, rank), id_of(right, what, rank));
    results_.push_back(id_of(left + right, what, rank));
    slots_[slot_of(pair)] = {pair, static_cast<std::uint32_t>(rank)};  // of a pair given twice, the last one counts
  }
}

std::size_t Bpe::slot_of(std::uint64_t pair) const {
  constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  std::size_t slot = (pair * kGoldenRatio) >> shift_;
  while (slots_[slot].rank != kNone && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

std::uint32_t Bpe::rank_of(std::int32_t left, std::int32_t right) const {
  return slots_[slot_of(pair_of(left, right))].rank;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;  // rank in the upper half, place in the lower: the least is merged next
  const auto n = static_cast<std::uint32_t>(piece.size());
  symbols.clear();
  heap.clear();
  for (std::uint32_t i = 0; i < n; ++i) {
    symbols.push_back({byte_ids_[static_cast<unsigned char>(piece[i])], i - 1, i + 1, kNone});
  }
  const auto rank_pair = [&](std::uint32_t i) {
    const std::uint32_t next = symbols[i].next;
    symbols[i].rank = next < n ? rank_of(symbols[i].id, symbols[next].id) : kNone;
    if (symbols[i].rank != kNone) heap.push_back(std::uint64_t{symbols[i].rank} << 32 | i);
    return symbols[i].rank != kNone;
  };
  for (std::uint32_t i = 0; i < n; ++i) rank_pair(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<std::uint32_t>(heap.back() >> 32);
    const auto left = static_cast<std::uint32_t>(heap.back());
    heap.pop_back();
    if (symbols[left].rank != rank) continue;  // one of the pair has been merged with another since
    const std::uint32_t right = symbols[left].next;
    const std::uint32_t next = symbols[right].next;
    symbols[right].rank = kNone;
    symbols[left].id = results_[rank];
    symbols[left].next = next;
    if (next < n) symbols[next].previous = left;
    if (rank_pair(left)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (left > 0 && rank_pair(symbols[left].previous)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  for (std::uint32_t i = 0; i < n; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace kalibri::text
