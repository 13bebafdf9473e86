// Pieces on their way between tensors and host memory, through sub-buffers in device memory:
//
//   pack stream:  [pack 0][digest 0][pack 1][digest 1]...        tensors -> sub-buffers; by kernels
//   copy stream:            [copy out 0       ][copy out 1 ...   sub-buffers -> slots; by a copy engine
//
// A sub-buffer is written only by us: the digests in a slot are of the bytes that are in it, whatever happens to the
// tensors meanwhile. Packing reads a tensor once, at the speed of device memory: what the host link is slower by is
// what the sub-buffers hold, so that as many as the state needs let the next update go on at once.
//
// All work is enqueued in the order in which it can be done. A stream may share its hardware queue with the caller's
// (CUDA_DEVICE_MAX_CONNECTIONS): work that waited for something enqueued later would block both, and work that waits at
// all delays what others enqueue behind it. Therefore room() is asked before enqueue_next(), unless nobody would gain.
//
// Used by one thread at a time, with the context current. Throws Failure; nothing waits for the GPU but where a queue
// of the driver is full.
#pragma once

#include <array>
#include <span>

#include "device/cuda_handles.hpp"
#include "device/cuda_kernels.hpp"
#include "device/cuda_ring.hpp"
#include "device/cuda_table.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class CudaStagingPipeline {
 public:
  explicit CudaStagingPipeline(std::uint64_t staging_bytes) : ring_(staging_bytes) {}

  std::uint64_t staging_bytes() const { return ring_.size_bytes(); }
  // Whether there was no memory for as much as was wanted.
  bool is_short() const { return ring_.is_short(); }

  // Begins a capture, behind what is enqueued on `stream`; what is enqueued there next comes after `synchronous` was
  // packed. The one before is over.
  void begin(std::span<const Device::Copy> overlapped, const Device::Copy& synchronous, CUstream stream);
  // Whether there are chunks left, whether a sub-buffer is free for the next one, and the next one's way.
  bool remaining() const { return piece_ < overlapped_count_; }
  bool room() { return ring_[number_].emptied.reached(); }
  void enqueue_next();
  // No chunks are left: what is enqueued on `streams` from now on comes after everything is packed.
  void end(std::span<const Stream> streams);
  // Forgets the chunks that are left.
  void abandon() { piece_ = overlapped_count_; }
  // Once end() was called: whether everything is where it goes.
  bool arrived() const { return arrived_.reached(); }

  // Enqueues all of a restore, behind what is enqueued on `stream`. Once arrived(), `digests` are those of the leaves,
  // and tensors in host memory are written by land().
  void load(const Plan& plan, const std::byte* from, std::uint64_t* digests, CUstream stream);
  void land() const { table_.write_back(); }

 private:
  void carry_at_once(const Device::Copy& copy, std::size_t plan, CUstream stream);
  void skip_finished_pieces();
  void load_chunk(const std::byte* from, std::size_t first_leaf, std::uint64_t length_bytes, std::uint64_t* digests);

  CudaKernels kernels_;
  BackgroundStream pack_stream_, copy_stream_;
  CudaRing ring_;
  CudaTable table_;
  DeviceMemory synchronous_;
  Event entered_, synchronous_packed_, synchronous_digested_, packed_, arrived_;

  std::array<Device::Copy, plans_max> overlapped_{};
  std::size_t overlapped_count_ = 0;
  std::size_t piece_ = 0, leaf_ = 0;  // the next chunk
  std::uint64_t number_ = 0;          // of chunks, since ever
};

}  // namespace ckpt::device
