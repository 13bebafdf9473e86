#include "device/cuda_staging_pipeline.hpp"

#include <algorithm>
#include <utility>

#include "device/cuda_copy.hpp"

namespace ckpt::device {
namespace {

constexpr std::size_t leaf_bytes = kernels::leaf_size_bytes;

}  // namespace

// Returns their plans.
CudaStagingPipeline::Plans CudaStagingPipeline::take_overlapped(std::span<const Device::Copy> overlapped) {
  overlapped_count_ = std::min(overlapped.size(), plans_max);
  Plans plans{};
  for (std::size_t i = 0; i < overlapped_count_; ++i) {
    overlapped_[i] = overlapped[i];
    plans[i] = overlapped[i].plan;
  }
  return plans;
}

void CudaStagingPipeline::begin(std::span<const Device::Copy> overlapped, const Device::Copy& synchronous,
                                CUstream stream) {
  Plans plans = take_overlapped(overlapped);
  plans[overlapped_count_] = synchronous.plan;
  table_.assign(std::span(plans).first(overlapped_count_ + 1), CudaTable::Images::copied, retired_);
  entered_.record(stream);
  entered_.hold_back(pack_stream_);
  table_.upload(pack_stream_);
  carry_at_once(synchronous, overlapped_count_, stream);
  piece_ = leaf_ = 0;
  skip_finished_pieces();
}

void CudaStagingPipeline::begin_late(std::span<const Device::Copy> overlapped) {
  const Plans plans = take_overlapped(overlapped);
  table_.assign(std::span(plans).first(overlapped_count_), CudaTable::Images::copied, retired_);
  table_.upload(pack_stream_);
  entered_.record(pack_stream_);
  piece_ = leaf_ = 0;
  skip_finished_pieces();
}

void CudaStagingPipeline::reserve_late(std::span<const Device::Copy> pieces) {
  Plans plans{};
  const std::size_t count = std::min(pieces.size(), plans_max);
  for (std::size_t i = 0; i < count; ++i) plans[i] = pieces[i].plan;
  table_.reserve(std::span(plans).first(count), retired_);
}

// It has its own room in device memory, for all of its size. So the next change to it waits only for packing.
void CudaStagingPipeline::carry_at_once(const Device::Copy& copy, std::size_t plan, CUstream stream) {
  const std::size_t length_bytes = copy.plan->length_bytes(), leaves = copy.plan->leaves();
  if (length_bytes == 0) return;
  const std::size_t needed_bytes = leaves * (leaf_bytes + sizeof(std::uint64_t));
  if (synchronous_.size_bytes() < needed_bytes)
    retired_.add(std::exchange(synchronous_, DeviceMemory(2 * needed_bytes)));
  const CUdeviceptr data = synchronous_.pointer(), digests = data + leaves * leaf_bytes;
  kernels_.pack(table_.job(plan, 0, length_bytes, data), pack_stream_);
  synchronous_packed_.record(pack_stream_);
  synchronous_packed_.hold_back(stream);
  kernels_.digest(data, length_bytes, digests, pack_stream_);
  synchronous_digested_.record(pack_stream_);
  synchronous_digested_.hold_back(copy_stream_);
  copy_to_host(copy.to.data, data, length_bytes, copy_stream_);
  copy_to_host(copy.to.digests, digests, leaves * sizeof(std::uint64_t), copy_stream_);
  synchronous_arrived_.record(copy_stream_);
}

void CudaStagingPipeline::skip_finished_pieces() {
  while (!is_packed() && leaf_ == overlapped_[piece_].plan->leaves()) {
    ++piece_;
    leaf_ = 0;
  }
}

void CudaStagingPipeline::pack_next() {
  const Plan& plan = *overlapped_[piece_].plan;
  const std::size_t first_byte = leaf_ * leaf_bytes;
  const std::size_t leaves = std::min(ring_.leaves(), plan.leaves() - leaf_);
  const std::size_t length_bytes = std::min(leaves * leaf_bytes, plan.length_bytes() - first_byte);
  packed_chunks_[number_ % packed_chunks_.size()] = {overlapped_[piece_], leaf_, leaves, length_bytes};
  const SubBuffer& buffer = ring_[number_++];
  buffer.emptied.hold_back(pack_stream_);
  kernels_.pack(table_.job(piece_, first_byte, length_bytes, buffer.data), pack_stream_);
  kernels_.digest(buffer.data, length_bytes, buffer.digests, pack_stream_);
  buffer.filled.record(pack_stream_);
  pack_backlog_.added(pack_stream_);
  leaf_ += leaves;
  skip_finished_pieces();
}

void CudaStagingPipeline::copy_next() {
  const auto& [copy, first_leaf, leaves, length_bytes] = packed_chunks_[copied_ % packed_chunks_.size()];
  const SubBuffer& buffer = ring_[copied_++];
  buffer.filled.hold_back(copy_stream_);
  copy_to_host(copy.to.data + first_leaf * leaf_bytes, buffer.data, length_bytes, copy_stream_);
  copy_to_host(copy.to.digests + first_leaf, buffer.digests, leaves * sizeof(std::uint64_t), copy_stream_);
  buffer.emptied.record(copy_stream_);
  copy_backlog_.added(copy_stream_);
}

void CudaStagingPipeline::release(std::span<const Stream> streams) {
  packed_.record(pack_stream_);
  for (const Stream stream : streams) packed_.hold_back(static_cast<CUstream>(stream));
}

void CudaStagingPipeline::end() {
  packed_.hold_back(copy_stream_);
  arrived_.record(copy_stream_);
}

void CudaStagingPipeline::abandon() {
  piece_ = overlapped_count_;
  copied_ = number_;
}

// Calls each(first leaf, length in bytes) for each chunk of a plan.
template <class Each>
void CudaStagingPipeline::cut_into_chunks(const Plan& plan, Each each) const {
  for (std::size_t leaf = 0; leaf < plan.leaves(); leaf += ring_.leaves()) {
    const std::uint64_t rest_bytes = plan.length_bytes() - leaf * leaf_bytes;
    each(leaf, std::min<std::uint64_t>(rest_bytes, ring_.chunk_bytes()));
  }
}

void CudaStagingPipeline::digest(const Plan& plan, std::uint64_t* digests, CUstream stream) {
  const Plan* const plans[] = {&plan};
  table_.assign(plans, CudaTable::Images::copied, retired_);
  entered_.record(stream);
  entered_.hold_back(pack_stream_);
  table_.upload(pack_stream_);
  cut_into_chunks(plan, [&](std::size_t first_leaf, std::uint64_t length_bytes) {
    const SubBuffer& buffer = ring_[number_++];
    copied_ = number_;
    buffer.emptied.hold_back(pack_stream_);
    kernels_.pack(table_.job(0, first_leaf * leaf_bytes, length_bytes, buffer.data), pack_stream_);
    kernels_.digest(buffer.data, length_bytes, buffer.digests, pack_stream_);
    copy_to_host(digests + first_leaf, buffer.digests, kernels::leaf_count(length_bytes) * sizeof(std::uint64_t),
                 pack_stream_);
    buffer.emptied.record(pack_stream_);
  });
  arrived_.record(pack_stream_);
}

void CudaStagingPipeline::load(const Plan& plan, const CopyIn& copy_in, std::uint64_t* digests, CUstream stream) {
  const Plan* const plans[] = {&plan};
  table_.assign(plans, CudaTable::Images::blank, retired_);
  entered_.record(stream);
  entered_.hold_back(pack_stream_);
  table_.upload(pack_stream_);
  cut_into_chunks(plan, [&](std::size_t first_leaf, std::uint64_t length_bytes) {
    load_chunk(copy_in, first_leaf, length_bytes, digests);
  });
  arrived_.record(pack_stream_);
}

void CudaStagingPipeline::load_chunk(const CopyIn& copy_in, std::size_t first_leaf, std::uint64_t length_bytes,
                                     std::uint64_t* digests) {
  const std::uint64_t first_byte = first_leaf * leaf_bytes;
  const SubBuffer& buffer = ring_[number_++];
  copied_ = number_;
  buffer.emptied.hold_back(copy_stream_);
  copy_in(buffer.data, first_byte, length_bytes, copy_stream_);
  buffer.filled.record(copy_stream_);
  buffer.filled.hold_back(pack_stream_);
  kernels_.digest(buffer.data, length_bytes, buffer.digests, pack_stream_);
  kernels_.unpack(table_.job(0, first_byte, length_bytes, buffer.data), pack_stream_);
  copy_to_host(digests + first_leaf, buffer.digests, kernels::leaf_count(length_bytes) * sizeof(std::uint64_t),
               pack_stream_);
  buffer.emptied.record(pack_stream_);
}

}  // namespace ckpt::device
