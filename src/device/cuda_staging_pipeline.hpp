// CudaStagingPipeline moves pieces between tensors and host memory, through sub-buffers in device memory:
//
//    pack stream:  [pack 0][pack 1][pack 2]...                 tensors -> sub-buffers and digests; by kernels
//    copy stream:          [copy out 0       ][copy out 1 ...  sub-buffers -> slots; by a copy engine
//
// Packing reads a tensor once, at the speed of device memory, and digests it on the way. The sub-buffers hold what the
// slower link to the host has not taken yet. If they hold the whole state, the next update can go on at once. Only this
// class writes them. So digests match the bytes in the slot even if tensors change meanwhile.
//
// If the sub-buffers are smaller than the state, the update waits until the first chunks are copied to the host. These
// chunks are *direct*. A kernel digests all their tensors, but packs only the small ones into a sub-buffer. The copy
// engine copies the large ones from where they are.
// That saves a write and a read in device memory. Such a chunk is whole because its tensors do not change until it is
// copied.
//
// Work is enqueued in the order in which it can be done. A stream may share a hardware queue with the caller's streams
// (CUDA_DEVICE_MAX_CONNECTIONS). Work that waits there for something enqueued later would block both. Work that waits
// at all delays the caller's work behind it. So call pack_next() only when room() is true, unless the caller waits for
// all of the copy anyway.
//
// GPU replication may ask for captured bytes, which are then copied within the GPU (copy_captured()). This adds work to
// the pack stream that can begin at once. So neither the capture nor the update waits for GPU replication.
//
// One thread at a time may use it, with the context current. Throws Failure. A capture never waits for the GPU.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda_arrivals.hpp"
#include "device/cuda_backlog.hpp"
#include "device/cuda_handles.hpp"
#include "device/cuda_kernels.hpp"
#include "device/cuda_ring.hpp"
#include "device/cuda_table.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class CudaStagingPipeline {
 public:
  explicit CudaStagingPipeline(std::uint64_t staging_bytes,
                               std::uint64_t chunk_max_bytes = CudaRing::default_chunk_max_bytes)
      : ring_(staging_bytes, chunk_max_bytes), packed_chunks_(ring_.count()) {}

  std::uint64_t staging_bytes() const { return ring_.size_bytes(); }
  // True if less memory was free than asked for.
  bool is_short() const { return ring_.is_short(); }

  // Begins a capture after the work that is enqueued on `stream`. Work enqueued there later comes after `synchronous`
  // was packed. The previous capture must be over.
  void begin(std::span<const Device::Copy> overlapped, const Device::Copy& synchronous, CUstream stream);
  // Begins a capture of tensors that no enqueued work writes. It waits for no stream of the caller. It allocates
  // nothing if reserve_late() was called for these tensors. Call reserve_late() only while no capture runs.
  void begin_late(std::span<const Device::Copy> overlapped);
  void reserve_late(std::span<const Device::Copy> pieces);
  // True if all of `synchronous` has arrived.
  bool synchronous_arrived() const { return synchronous_arrived_.reached(); }
  // Each chunk is packed, and then copied out. pack_next() enqueues the packing of the next chunk, and copy_next() the
  // copy. may_pack() and may_copy(): true if that call may be made now and would not block. room(): true if the GPU has
  // emptied the sub-buffer of the next chunk to pack. is_packed(), is_copied(): true once packing or copying is
  // enqueued for all chunks.
  bool is_packed() const { return piece_ == overlapped_count_; }
  bool is_copied() const { return is_packed() && copied_ == number_; }
  bool may_pack() { return !is_packed() && number_ - copied_ < ring_.count() && pack_backlog_.has_room(); }
  bool may_copy() { return copied_ < number_ && copy_backlog_.has_room(); }
  bool room() { return ring_[number_].emptied.reached(); }
  void pack_next();
  void copy_next();
  // The capture's leaves that are not packed yet; those of a chunk; those that are packed and not copied to the host.
  std::size_t leaves_left() const;
  std::size_t chunk_leaves() const { return ring_.leaves(); }
  std::size_t leaves_under_way() const { return arrivals_.leaves_under_way() + packed_leaves_; }
  // Returns the oldest chunk under way, if it has arrived on the host.
  std::optional<CudaArrivals::Arrived> take_arrived() { return arrivals_.take(); }
  // note_update(): the update will be enqueued on `stream`. is_update_due(): the GPU has come so far. is_awaited(): it
  // has, and the update waits for packing.
  void note_update(CUstream stream);
  bool is_update_due() const { return is_update_noted_ && update_.reached(); }
  bool is_awaited() const { return is_update_due() && !(is_released_ && packed_.reached()); }
  // Call this once is_packed(). Work enqueued on `streams` from now on comes after everything is packed.
  void release(std::span<const Stream> streams);
  // Call this after release(), once is_copied() is true. It is the last call for a capture.
  void end();
  // Drops the chunks that are left.
  void abandon();
  // True if the GPU has reached the beginning of the capture.
  bool entered() const { return entered_.reached(); }
  // Number of captures that have begun. So it is the number of the newest capture.
  std::uint64_t captures() const { return captures_; }
  // Enqueues a copy of bytes from the first piece of capture number `capture` to device memory at `to`, and records
  // `copied` after it. Nothing else may use that memory now. Returns false, and enqueues nothing, if the bytes are not
  // on the GPU, the GPU has not reached the newest capture, or the driver's queue is full. The bytes are on the GPU
  // until release(). After that, those of chunks that are not direct are there until a later chunk is packed over them.
  bool copy_captured(std::uint64_t capture, std::uint64_t first_byte, std::uint64_t size_bytes, CUdeviceptr to,
                     const Event& copied);
  // After end(), load() or digest(): true if everything has arrived.
  bool arrived() const { return arrived_.reached(); }

  // Enqueues a whole restore after the work that is enqueued on `stream`. `copy_in` enqueues the copy of a chunk to the
  // GPU. Once arrived(), `digests` holds the digests of the leaves, and land() writes the tensors in host memory.
  using CopyIn = std::function<void(CUdeviceptr to, std::uint64_t first_byte, std::size_t size_bytes, CUstream stream)>;
  void load(const Plan& plan, const CopyIn& copy_in, std::uint64_t* digests, CUstream stream);
  // Enqueues a whole check after the work that is enqueued on `stream`. Once arrived(), `digests` holds the digests of
  // the tensors' leaves.
  void digest(const Plan& plan, std::uint64_t* digests, CUstream stream);
  void land() const { table_.write_back(); }

  // Returns memory that larger memory has replaced. Nothing uses it any more once the GPU has done what is enqueued
  // now.
  RetiredMemory take_retired() { return std::exchange(retired_, {}); }

 private:
  using Plans = std::array<const Plan*, plans_max + 1>;
  Plans take_overlapped(std::span<const Device::Copy> overlapped);
  template <class Each>
  void cut_into_chunks(const Plan& plan, Each each) const;
  void carry_at_once(const Device::Copy& copy, std::size_t plan, CUstream stream);
  void name_capture();
  void begin_chunks();
  void skip_finished_pieces();
  // A smaller tensor is not worth a copy of its own. At most 33 larger ones have bytes in a chunk.
  std::size_t direct_min_bytes() const { return ring_.chunk_bytes() / 32; }
  std::uint64_t copy_from_tensors(std::uint64_t first_byte, std::uint64_t size_bytes, CUdeviceptr to);
  std::uint64_t copy_from_ring(std::uint64_t capture, std::uint64_t first_byte, std::uint64_t size_bytes,
                               CUdeviceptr to);
  void load_chunk(const CopyIn& copy_in, std::size_t first_leaf, std::uint64_t length_bytes, std::uint64_t* digests);

  CudaKernels kernels_;
  BackgroundStream pack_stream_, copy_stream_;
  CudaRing ring_;
  CudaTable table_;
  DeviceMemory synchronous_;
  Event entered_, synchronous_packed_, synchronous_arrived_, packed_, arrived_, update_;
  bool is_update_noted_ = false, is_released_ = false;

  std::array<Device::Copy, plans_max> overlapped_{};
  std::size_t overlapped_count_ = 0;
  std::size_t piece_ = 0, leaf_ = 0;  // the next chunk to pack
  std::uint64_t number_ = 0;          // number of chunks that were packed or loaded, ever
  std::uint64_t copied_ = 0;          // number of chunks that were copied out or loaded, ever
  std::size_t direct_left_ = 0;       // so many of the next chunks to pack are direct
  std::uint64_t captures_ = 0;
  bool holds_tensors_ = false;  // the tensors of the newest capture do not change, and table_ is theirs
  struct Chunk {
    Device::Copy copy;
    std::uint64_t capture = 0;  // number of the capture; 0: the sub-buffer has no captured bytes
    std::size_t piece = 0;
    std::size_t first_leaf = 0, leaves = 0;
    std::size_t length_bytes = 0;
    bool is_direct = false;
  };
  std::size_t copy_data(const Chunk& chunk, CUdeviceptr packed) const;
  std::optional<std::size_t> staged(std::uint64_t capture, std::uint64_t byte) const;
  const SubBuffer& take_buffer();
  std::vector<Chunk> packed_chunks_;  // of each sub-buffer
  CudaBacklog pack_backlog_, copy_backlog_;
  CudaArrivals arrivals_;
  std::size_t packed_leaves_ = 0;  // of chunks whose copy is not enqueued yet
  RetiredMemory retired_;
};

}  // namespace ckpt::device
