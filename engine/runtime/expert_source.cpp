#include "engine/runtime/expert_source.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/base/check.hpp"
#include "engine/checkpoint/values.hpp"

namespace kalibri::runtime {

namespace {

using kernels::Format;
using kernels::MatrixView;

/// So little between two parts is read with them: a second read costs more.
constexpr std::size_t kLargestGap = std::size_t{16} << 10;

std::size_t n_scales(const MatrixView& w) {
  const auto blocks = [](std::int64_t n) { return (n + kernels::kFp8Block - 1) / kernels::kFp8Block; };
  return static_cast<std::size_t>(blocks(w.n_rows) * blocks(w.n_cols));
}

std::size_t round_up(std::size_t n) { return (n + kDirectBlock - 1) / kDirectBlock * kDirectBlock; }

void add_extent(std::vector<ExpertExtent>& extents, const checkpoint::TensorPlaces& places, const void* data,
                std::int64_t n_bytes) {
  const auto place = places.find(data);
  KALIBRI_CHECK(place.has_value(), "an expert lies in a mapped tensor");
  extents.push_back({.file = place->file,
                     .offset = place->offset,
                     .n_bytes = static_cast<std::size_t>(n_bytes),
                     .mapped = static_cast<const std::byte*>(data),
                     .tensor = place->tensor});
}

/// Neighbours in a file become one.
std::vector<ExpertExtent> joined(std::vector<ExpertExtent> parts) {
  std::ranges::sort(parts, {}, &ExpertExtent::mapped);
  std::vector<ExpertExtent> extents;
  for (const ExpertExtent& part : parts) {
    ExpertExtent* last = extents.empty() ? nullptr : &extents.back();
    if (last != nullptr && last->file == part.file && part.offset <= last->offset + last->n_bytes + kLargestGap) {
      last->n_bytes = std::max<std::size_t>(last->n_bytes, part.offset + part.n_bytes - last->offset);
    } else {
      extents.push_back(part);
    }
  }
  return extents;
}

bool is_finite(checkpoint::Dtype dtype, const void* data, std::int64_t n_bytes) {
  checkpoint::TensorView view;
  view.dtype = dtype;
  view.bytes = {static_cast<const std::byte*>(data), static_cast<std::size_t>(n_bytes)};
  return checkpoint::find_not_finite(view) < 0;
}

bool is_finite(const MatrixView& w) {
  if (w.format == Format::e4m3_block) {
    return std::all_of(w.scale_inv, w.scale_inv + n_scales(w), checkpoint::is_block_scale) &&
           is_finite(checkpoint::Dtype::f8_e4m3, w.data, kernels::stored_bytes(w));
  }
  if (w.format != Format::affine) return true;  // bf16 and f32 are taken as they are
  const auto dtype = w.grid_format == Format::f32 ? checkpoint::Dtype::f32 : checkpoint::Dtype::bf16;
  const std::int64_t n_bytes = w.n_rows * kernels::grid_row_bytes(w);
  return is_finite(dtype, w.scales, n_bytes) && is_finite(dtype, w.biases, n_bytes);
}

}  // namespace

ExpertSource::ExpertSource(const ExpertWeights& stored, const checkpoint::TensorPlaces& places) : stored_(stored) {
  std::vector<ExpertExtent> parts;
  Scales* scales = scales_;
  for (const MatrixView& w : {stored.gate, stored.up, stored.down}) {
    add_extent(parts, places, w.data, kernels::stored_bytes(w));
    if (w.format == Format::affine) {
      add_extent(parts, places, w.scales, w.n_rows * kernels::grid_row_bytes(w));
      add_extent(parts, places, w.biases, w.n_rows * kernels::grid_row_bytes(w));
    }
    if (w.format == Format::e4m3_block) {
      if (const auto place = places.find(w.scale_inv)) *scales = {place->file, place->offset, {}};
    }
    ++scales;
  }
  extents_ = joined(std::move(parts));
  for (ExpertExtent& extent : extents_) {
    const std::size_t lead = extent.offset % kDirectBlock;
    extent.slot_offset = slot_bytes_ + lead;
    slot_bytes_ += round_up(lead + extent.n_bytes);
  }
}

const std::byte* ExpertSource::find_in_slot(const std::byte* slot, const void* mapped) const {
  const auto* at = static_cast<const std::byte*>(mapped);
  for (const ExpertExtent& extent : extents_) {
    if (at >= extent.mapped && at < extent.mapped + extent.n_bytes) {
      return slot + extent.slot_offset + (at - extent.mapped);
    }
  }
  return nullptr;
}

ExpertWeights ExpertSource::views(const std::byte* slot) const {
  ExpertWeights weights = stored_;
  const Scales* scales = scales_;
  for (MatrixView* w : {&weights.gate, &weights.up, &weights.down}) {
    w->data = find_in_slot(slot, w->data);
    if (w->format == Format::affine) {
      w->scales = find_in_slot(slot, w->scales);
      w->biases = find_in_slot(slot, w->biases);
    }
    if (scales->file != nullptr) w->scale_inv = scales->values.data();
    ++scales;
  }
  return weights;
}

void ExpertSource::read_scales(const std::byte* slot) {
  Scales* scales = scales_;
  for (const MatrixView& w : {stored_.gate, stored_.up, stored_.down}) {
    if (scales->file != nullptr) {
      scales->values.resize(n_scales(w));
      const std::span<std::byte> bytes = std::as_writable_bytes(std::span(scales->values));
      if (const std::byte* read = find_in_slot(slot, w.scale_inv)) {  // they lay in a gap
        std::memcpy(bytes.data(), read, bytes.size());
      } else {
        scales->file->read(scales->offset, bytes);
      }
    }
    ++scales;
  }
}

bool ExpertSource::has_only_numbers(const ExpertWeights& weights) {
  return is_finite(weights.gate) && is_finite(weights.up) && is_finite(weights.down);
}

}  // namespace kalibri::runtime
