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

// A capture that fails to begin also has a number of its own.
void CudaStagingPipeline::name_capture() {
  ++captures_;
  holds_tensors_ = false;
}

void CudaStagingPipeline::begin(std::span<const Device::Copy> overlapped, const Device::Copy& synchronous,
                                CUstream stream) {
  name_capture();
  Plans plans = take_overlapped(overlapped);
  plans[overlapped_count_] = synchronous.plan;
  table_.assign(std::span(plans).first(overlapped_count_ + 1), CudaTable::Images::copied, retired_, direct_min_bytes());
  entered_.record(stream);
  entered_.hold_back(pack_stream_);
  table_.upload(pack_stream_);
  carry_at_once(synchronous, overlapped_count_, stream);
  begin_chunks();
}

void CudaStagingPipeline::begin_late(std::span<const Device::Copy> overlapped) {
  name_capture();
  const Plans plans = take_overlapped(overlapped);
  table_.assign(std::span(plans).first(overlapped_count_), CudaTable::Images::copied, retired_, direct_min_bytes());
  table_.upload(pack_stream_);
  entered_.record(pack_stream_);
  begin_chunks();
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
  kernels_.pack(table_.job(plan, 0, length_bytes, data), digests, pack_stream_);
  synchronous_packed_.record(pack_stream_);
  synchronous_packed_.hold_back(stream);
  synchronous_packed_.hold_back(copy_stream_);
  copy_to_host(copy.to.data, data, length_bytes, copy_stream_);
  copy_to_host(copy.to.digests, digests, leaves * sizeof(std::uint64_t), copy_stream_);
  synchronous_arrived_.record(copy_stream_);
}

// The last chunks go through sub-buffers, as many as there are. Before the update, each of them needs a sub-buffer that
// all chunks before them have left. So the update waits for the copies of these anyway, and they may read the tensors.
void CudaStagingPipeline::begin_chunks() {
  std::size_t chunks = 0;
  for (std::size_t i = 0; i < overlapped_count_; ++i)
    chunks += (overlapped_[i].plan->leaves() + ring_.leaves() - 1) / ring_.leaves();
  direct_left_ = chunks - std::min(chunks, ring_.count());
  piece_ = leaf_ = 0;
  is_update_noted_ = is_released_ = false;
  arrivals_.forget();
  packed_leaves_ = 0;
  skip_finished_pieces();
  holds_tensors_ = true;
}

std::size_t CudaStagingPipeline::leaves_left() const {
  std::size_t leaves = 0;
  for (std::size_t piece = piece_; piece < overlapped_count_; ++piece) leaves += overlapped_[piece].plan->leaves();
  return leaves - leaf_;
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
  const bool is_direct = direct_left_ > 0;
  if (is_direct) --direct_left_;
  packed_chunks_[number_ % packed_chunks_.size()] = {overlapped_[piece_], captures_, piece_, leaf_, leaves,
                                                     length_bytes,        is_direct};
  const SubBuffer& buffer = ring_[number_++];
  buffer.emptied.hold_back(pack_stream_);
  kernels_.pack(table_.job(piece_, first_byte, length_bytes, buffer.data, is_direct), buffer.digests, pack_stream_);
  buffer.filled.record(pack_stream_);
  pack_backlog_.added(pack_stream_, 3);
  packed_leaves_ += leaves;
  leaf_ += leaves;
  skip_finished_pieces();
}

void CudaStagingPipeline::copy_next() {
  const Chunk& chunk = packed_chunks_[copied_ % packed_chunks_.size()];
  const SubBuffer& buffer = ring_[copied_++];
  buffer.filled.hold_back(copy_stream_);
  arrivals_.begin(copy_stream_);
  const std::size_t copies = copy_data(chunk, buffer.data);
  copy_to_host(chunk.copy.to.digests + chunk.first_leaf, buffer.digests, chunk.leaves * sizeof(std::uint64_t),
               copy_stream_);
  buffer.emptied.record(copy_stream_);
  arrivals_.enqueued(copy_stream_, chunk.leaves);
  packed_leaves_ -= chunk.leaves;
  copy_backlog_.added(copy_stream_, copies + 5);
}

// Copies direct tensors from where they are, and all else from the sub-buffer. Returns the number of copies.
std::size_t CudaStagingPipeline::copy_data(const Chunk& chunk, CUdeviceptr packed) const {
  const Plan& plan = *chunk.copy.plan;
  const std::vector<std::size_t>& offsets = plan.offsets();
  const std::size_t first_byte = chunk.first_leaf * leaf_bytes, end = first_byte + chunk.length_bytes;
  std::size_t done = first_byte, copies = 0;
  const auto copy_until = [&](std::size_t byte, CUdeviceptr from) {
    if (byte == done) return;
    copy_to_host(chunk.copy.to.data + done, from, byte - done, copy_stream_);
    done = byte;
    ++copies;
  };
  const auto after_first = std::upper_bound(offsets.begin(), offsets.end(), first_byte);
  auto tensor = static_cast<std::size_t>(after_first - offsets.begin()) - 1;
  for (; chunk.is_direct && offsets[tensor] < end; ++tensor) {
    if (!is_direct(plan, tensor, direct_min_bytes())) continue;
    const auto& [data, size_bytes] = plan.targets()[tensor];
    copy_until(std::max(offsets[tensor], first_byte), packed + (done - first_byte));
    copy_until(std::min(offsets[tensor] + size_bytes, end),
               reinterpret_cast<CUdeviceptr>(data) + (done - offsets[tensor]));
  }
  copy_until(end, packed + (done - first_byte));
  return copies;
}

void CudaStagingPipeline::note_update(CUstream stream) {
  update_.record(stream);
  is_update_noted_ = true;
}

void CudaStagingPipeline::release(std::span<const Stream> streams) {
  holds_tensors_ = false;
  packed_.record(pack_stream_);
  is_released_ = true;
  for (const Stream stream : streams) packed_.hold_back(static_cast<CUstream>(stream));
}

void CudaStagingPipeline::end() {
  packed_.hold_back(copy_stream_);
  arrived_.record(copy_stream_);
}

void CudaStagingPipeline::abandon() {
  holds_tensors_ = false;
  piece_ = overlapped_count_;
  leaf_ = 0;
  copied_ = number_;
  arrivals_.forget();
  packed_leaves_ = 0;
}

bool CudaStagingPipeline::copy_captured(std::uint64_t capture, std::uint64_t first_byte, std::uint64_t size_bytes,
                                        CUdeviceptr to, const Event& copied) {
  if (!entered() || !pack_backlog_.has_room()) return false;
  const std::uint64_t operations = capture == captures_ && holds_tensors_
                                       ? copy_from_tensors(first_byte, size_bytes, to)
                                       : copy_from_ring(capture, first_byte, size_bytes, to);
  if (operations == 0) return false;
  copied.record(pack_stream_);
  pack_backlog_.added(pack_stream_, operations + 1);
  return true;
}

// Returns the number of operations, here and below. The update is enqueued later, and waits for the pack stream.
std::uint64_t CudaStagingPipeline::copy_from_tensors(std::uint64_t first_byte, std::uint64_t size_bytes,
                                                     CUdeviceptr to) {
  if (first_byte % leaf_bytes != 0 || overlapped_count_ == 0) return 0;
  kernels_.pack(table_.job(0, first_byte, size_bytes, to), 0, pack_stream_);
  return 1;
}

// A later chunk is packed over these sub-buffers on the same stream, so after the copy.
std::uint64_t CudaStagingPipeline::copy_from_ring(std::uint64_t capture, std::uint64_t first_byte,
                                                  std::uint64_t size_bytes, CUdeviceptr to) {
  struct Part {
    CUdeviceptr from;
    std::size_t size_bytes;
  };
  std::array<Part, CudaBacklog::chunk_operations_max - 1> parts;
  std::size_t count = 0;
  for (std::uint64_t at = first_byte, end = first_byte + size_bytes; at < end; ++count) {
    const auto found = staged(capture, at);
    if (!found || count == parts.size()) return 0;
    const Chunk& chunk = packed_chunks_[*found];
    const std::uint64_t begin = chunk.first_leaf * leaf_bytes;
    const std::uint64_t part_bytes = std::min(begin + chunk.length_bytes, end) - at;
    parts[count] = {ring_[*found].data + (at - begin), part_bytes};
    at += part_bytes;
  }
  for (std::size_t i = 0; i < count; to += parts[i++].size_bytes)
    copy_within(to, parts[i].from, parts[i].size_bytes, pack_stream_);
  return count;
}

// Returns the number of the sub-buffer that has this byte of the capture's first piece.
std::optional<std::size_t> CudaStagingPipeline::staged(std::uint64_t capture, std::uint64_t byte) const {
  for (std::size_t i = 0; i < packed_chunks_.size(); ++i) {
    const Chunk& chunk = packed_chunks_[i];
    const std::uint64_t begin = chunk.first_leaf * leaf_bytes;
    const bool is_there = chunk.capture == capture && chunk.piece == 0 && !chunk.is_direct;
    if (is_there && byte >= begin && byte - begin < chunk.length_bytes) return i;
  }
  return std::nullopt;
}

// Returns the next sub-buffer, for anything but a capture.
const SubBuffer& CudaStagingPipeline::take_buffer() {
  packed_chunks_[number_ % packed_chunks_.size()] = {};
  const SubBuffer& buffer = ring_[number_++];
  copied_ = number_;
  return buffer;
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
  holds_tensors_ = false;
  const Plan* const plans[] = {&plan};
  table_.assign(plans, CudaTable::Images::copied, retired_);
  entered_.record(stream);
  entered_.hold_back(pack_stream_);
  table_.upload(pack_stream_);
  cut_into_chunks(plan, [&](std::size_t first_leaf, std::uint64_t length_bytes) {
    const SubBuffer& buffer = take_buffer();
    buffer.emptied.hold_back(pack_stream_);
    kernels_.pack(table_.job(0, first_leaf * leaf_bytes, length_bytes, 0), buffer.digests, pack_stream_);
    copy_to_host(digests + first_leaf, buffer.digests, kernels::leaf_count(length_bytes) * sizeof(std::uint64_t),
                 pack_stream_);
    buffer.emptied.record(pack_stream_);
  });
  arrived_.record(pack_stream_);
}

void CudaStagingPipeline::load(const Plan& plan, const CopyIn& copy_in, std::uint64_t* digests, CUstream stream) {
  holds_tensors_ = false;
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
  const SubBuffer& buffer = take_buffer();
  buffer.emptied.hold_back(copy_stream_);
  copy_in(buffer.data, first_byte, length_bytes, copy_stream_);
  buffer.filled.record(copy_stream_);
  buffer.filled.hold_back(pack_stream_);
  kernels_.unpack(table_.job(0, first_byte, length_bytes, buffer.data), buffer.digests, pack_stream_);
  copy_to_host(digests + first_leaf, buffer.digests, kernels::leaf_count(length_bytes) * sizeof(std::uint64_t),
               pack_stream_);
  buffer.emptied.record(pack_stream_);
}

}  // namespace ckpt::device
