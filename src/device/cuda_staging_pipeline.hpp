// CudaStagingPipeline moves pieces between tensors and host memory, through sub-buffers in device memory:
//
//    pack stream:  [pack 0][digest 0][pack 1][digest 1]...        tensors -> sub-buffers; by kernels
//    copy stream:            [copy out 0       ][copy out 1 ...   sub-buffers -> slots; by a copy engine
//
// Packing reads a tensor once, at the speed of device memory. The sub-buffers hold what the slower link to the host has
// not taken yet. If they hold the whole state, the next update can go on at once. Only this class writes them. So
// digests match the bytes in the slot even if tensors change meanwhile.
//
// Work is enqueued in the order in which it can be done. A stream may share a hardware queue with the caller's streams
// (CUDA_DEVICE_MAX_CONNECTIONS). Work that waits there for something enqueued later would block both. Work that waits
// at all delays the caller's work behind it. So call enqueue_next() only when room() is true, unless the caller waits
// for all of the copy anyway.
//
// One thread at a time may use it, with the context current. Throws Failure. It waits for the GPU only if a queue of
// the driver is full.
#pragma once

#include <array>
#include <functional>
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
  // True if less memory was free than asked for.
  bool is_short() const { return ring_.is_short(); }

  // Begins a capture after the work that is enqueued on `stream`. Work enqueued there later comes after `synchronous`
  // was packed. The previous capture must be over.
  void begin(std::span<const Device::Copy> overlapped, const Device::Copy& synchronous, CUstream stream);
  // remaining(): chunks are left. room(): a sub-buffer is free for the next one. enqueue_next(): enqueues the next one.
  bool remaining() const { return piece_ < overlapped_count_; }
  bool room() { return ring_[number_].emptied.reached(); }
  void enqueue_next();
  // Call this when no chunks are left. Work enqueued on `streams` from now on comes after everything is packed.
  void end(std::span<const Stream> streams);
  // Drops the chunks that are left.
  void abandon() { piece_ = overlapped_count_; }
  // True if the GPU has got to the capture.
  bool entered() const { return entered_.reached(); }
  // After end(): true if everything has arrived.
  bool arrived() const { return arrived_.reached(); }

  // Enqueues a whole restore after the work that is enqueued on `stream`. `copy_in` enqueues the copy of a chunk to the
  // GPU. Once arrived(), `digests` holds the digests of the leaves, and land() writes the tensors in host memory.
  using CopyIn = std::function<void(CUdeviceptr to, std::uint64_t first_byte, std::size_t size_bytes, CUstream stream)>;
  void load(const Plan& plan, const CopyIn& copy_in, std::uint64_t* digests, CUstream stream);
  std::size_t chunk_bytes() const { return ring_.chunk_bytes(); }
  void land() const { table_.write_back(); }

 private:
  void carry_at_once(const Device::Copy& copy, std::size_t plan, CUstream stream);
  void skip_finished_pieces();
  void load_chunk(const CopyIn& copy_in, std::size_t first_leaf, std::uint64_t length_bytes, std::uint64_t* digests);

  CudaKernels kernels_;
  BackgroundStream pack_stream_, copy_stream_;
  CudaRing ring_;
  CudaTable table_;
  DeviceMemory synchronous_;
  Event entered_, synchronous_packed_, synchronous_digested_, packed_, arrived_;

  std::array<Device::Copy, plans_max> overlapped_{};
  std::size_t overlapped_count_ = 0;
  std::size_t piece_ = 0, leaf_ = 0;  // the next chunk
  std::uint64_t number_ = 0;          // number of chunks, ever
};

}  // namespace ckpt::device
