// Device is the interface through which an engine captures and restores tensors: it copies their bytes into a slot and
// back. HostDevice, CudaDevice and AutoDevice implement it.
//
// A device belongs to one engine. One thread at a time uses it: the training thread, or the thread that begins a
// capture late. From start() until the device has called `done` or cancel() has returned, the caller keeps plans,
// tensors and destination in place. release() says when the tensors may change.
//
// A stream is a CUstream; null is the legacy default stream. HostDevice ignores streams.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "ckptengine/ckptengine.h"
#include "device/copy_pace.hpp"
#include "gpu_replication/replicator.hpp"
#include "kernels/copy_digest.hpp"

namespace ckpt::device {

// The tensors of one shard, in the order of its layout. It is made once per layout, used in every iteration, and never
// changes.
class Plan {
 public:
  // The bytes of one tensor. `data` is null only if the size is 0.
  struct Region {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
    ckpt_memory memory = CKPT_HOST;
  };
  explicit Plan(const std::vector<Region>& regions);

  // Returns the plan for `size_bytes` of the packed bytes, from `first_byte` on.
  Plan slice(std::uint64_t first_byte, std::uint64_t size_bytes) const;

  const std::vector<kernels::Source>& sources() const { return sources_; }
  const std::vector<kernels::Target>& targets() const { return targets_; }
  const std::vector<ckpt_memory>& memories() const { return memories_; }
  const std::vector<std::size_t>& offsets() const { return offsets_; }
  std::size_t length_bytes() const { return offsets_.back(); }
  std::size_t leaves() const { return kernels::leaf_count(length_bytes()); }

 private:
  std::vector<kernels::Source> sources_;
  std::vector<kernels::Target> targets_;
  std::vector<ckpt_memory> memories_;
  std::vector<std::size_t> offsets_;
};

// The most plans that start() takes.
inline constexpr std::size_t plans_max = 8;

// A piece in host memory, with the digests of its leaves. The data are aligned to 64 bytes.
struct Packed {
  std::byte* data;
  std::uint64_t* digests;
};
struct ConstPacked {
  const std::byte* data;
  const std::uint64_t* digests;
};

// A range of host memory that the engine has mapped.
struct Range {
  std::byte* data;
  std::size_t size_bytes;
};

// Keeps ranges mapped as long as anybody holds a copy of this pointer.
using Owner = std::shared_ptr<const void>;

using Stream = void*;

// Reports when the GPU reaches points on its streams. At each point the GPU writes a word. A little later, a thread of
// this object reports the time at which the GPU reached it. Thread-safe. Does not throw.
class StreamTimestamps {
 public:
  // A track is a list of points that the GPU reaches in the order in which they were added. The caller must see to that
  // order, for example with points on one stream. Tracks are numbered from 0.
  static constexpr std::uint32_t tracks_max = 32;
  struct Point {
    std::uint32_t track = 0;
    std::atomic<std::uint32_t>* word = nullptr;  // null: the GPU writes nothing
    std::uint32_t value = 0;
  };
  // Called when the GPU has reached a point of `track`, at the time `at`. One thread makes all calls. Calls for one
  // track come in the order of `at`. Calls for different tracks may not: a call waits for the earlier points of its own
  // track. Must not throw.
  using Reached = std::function<void(std::uint32_t track, Clock::time_point at)>;

  virtual ~StreamTimestamps() = default;
  // Adds a point after the work that is enqueued on `stream`. The stream does not wait for it. Returns false, and
  // neither writes nor reports anything, if the GPU does not take the point: the stream is being captured into a graph,
  // the stream still has thousands of points ahead of it, or an error has ended the context.
  virtual bool add(Stream stream, const Point& point) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // Prepares for tensors in this kind of memory. `data` is the address of one. Throws Failure if the device cannot
  // access that memory. The caller puts a tensor's name before the sentence.
  virtual void reach(ckpt_memory memory, const void* data) = 0;
  // Any thread. Starts to prepare ranges for a later attach(), and returns at once: a thread of the device does the
  // work, which may take long. `owner` is as in attach(). Does not throw.
  virtual void prepare(const std::vector<Range>& /*ranges*/, const Owner& /*owner*/) {}
  // Sets the memory ranges that pieces go to from now on. `owner` keeps the ranges mapped. The device holds `owner` as
  // long as it uses the ranges. It releases previous ranges later, on a thread of its own, so the caller need not keep
  // them. Do not call attach() while a copy runs. Does not throw: after a failure, the device is broken(), and tries
  // again by itself.
  virtual void attach(const std::vector<Range>& ranges, const Owner& owner) = 0;
  // Adds a range to those of attach(), under the same rules.
  virtual void attach_also(const Range& range, const Owner& owner) = 0;
  // Waits until the work is done that attach() and attach_also() have begun. Returns false if the deadline passes
  // first; then do not call start() yet. attaching() says in a few words how far this work is.
  virtual bool wait_until_attached(Deadline /*deadline*/) { return true; }
  virtual std::string attaching() const { return {}; }
  // Returns a sentence, only once, when something that had failed works again.
  virtual std::optional<std::string> take_news() { return std::nullopt; }
  // Throws Failure (CKPT_ERR_INVALID), which names `call`, if one of these streams is being captured into a CUDA graph:
  // what is enqueued there goes into the graph, and the GPU does not do it now. This check does not disturb the graph's
  // capture. `streams` are those of the next start(), release() or load().
  virtual void check_streams(const char* /*call*/, std::span<const Stream> /*streams*/) const {}
  // True if nothing can be captured now. failure() says why. If the reason is a copy that the GPU has not ended, the
  // device works again once the GPU has ended it.
  virtual bool broken() const = 0;
  // True if the ranges could not be pinned. Then call attach() again, even with the same ranges: it may succeed now.
  virtual bool wants_ranges() const { return false; }
  // One sentence about the last failure. Empty if there was none.
  virtual std::string failure() const = 0;
  // staging_bytes(): size of the device memory that copies pass through; 0 if there is none. shortage(): a sentence if
  // the size is less than what was asked for, otherwise "".
  virtual std::uint64_t staging_bytes() const { return 0; }
  virtual std::string shortage() const { return {}; }

  // A piece to capture: the tensors and the destination. start() begins to copy and digest up to plans_max pieces, and
  // copies `synchronous` before it returns. On CUDA, all copies come after the work that was enqueued on `stream`
  // before. Work that is enqueued on `stream` later waits for `synchronous`. One start() at a time. Does not throw.
  struct Copy {
    const Plan* plan = nullptr;
    Packed to{};
  };
  virtual void start(std::span<const Copy> overlapped, const Copy& synchronous, Stream stream) = 0;
  // The copies of start() and start_late() that come now follow this pace, until release() or cancel(). Null: they are
  // copied at once, as without this call. The pace must outlive them.
  virtual void pace(CopyPace* /*pace*/) {}
  // True if start() may be called on another thread, at any time before the overlapped tensors change.
  virtual bool can_start_late() const { return false; }
  // Waits until what start() copies synchronously is at its destination. On the host it is there at once. Returns false
  // if the copy failed or did not end in time. Then call cancel().
  virtual bool wait_for_synchronous(std::int64_t /*timeout_ms*/) { return true; }

  // True if the device can capture tensors at rest: all work that has written them has ended, and no more begins.
  // Always true if can_start_late().
  virtual bool captures_late() const { return can_start_late(); }
  // Allocates what start_late() needs for these pieces. Training thread, while no copy runs. Does not throw.
  virtual void reserve_late(std::span<const Copy> /*pieces*/) {}
  // Any thread. Does what start() does, for tensors at rest. It waits for no stream of training. It allocates nothing
  // if reserve_late() was called for these pieces.
  virtual void start_late(std::span<const Copy> /*overlapped*/) {}

  // note_lead(): remembers what training has enqueued on `stream` until now. is_ahead(): true while the GPU has not
  // done all of that, so the host may wait without delaying training. Always false for tensors in host memory.
  virtual void note_lead(Stream /*stream*/) {}
  virtual bool is_ahead() const { return false; }

  // Releases the tensors: afterwards they may change. On the host, waits for the copy. With CUDA, work that is enqueued
  // later on `streams` may change the tensors. The host then waits only if gigabytes of the copy are left to be
  // enqueued, or while a pace puts chunks off and the GPU has work of training left. `done` is called once, with true
  // if the pieces are whole: before this returns, or later on a thread of the device. It must not throw. Returns false,
  // without calling `done`, if the copy failed or did not end in time. Then call cancel(). With CUDA the time begins
  // when the GPU gets to the copy.
  using Done = std::function<void(bool whole)>;
  virtual bool release(std::span<const Stream> streams, std::int64_t timeout_ms, Done done) = 0;
  // Gives up the running copy. Once it returns, `done` is not called, and nothing reads the tensors or writes the
  // destination. If the GPU does not end the copy, the device is broken() until it has.
  virtual void cancel() = 0;

  // Copies a piece back into the tensors, after the work enqueued on `stream` before, and verifies each leaf. Returns
  // when the tensors hold it. If a leaf does not match, returns its number, and the tensors are undefined. Throws
  // Failure.
  virtual std::optional<std::size_t> load(const Plan& plan, ConstPacked from, Stream stream) = 0;

  // If loads_leaves(): does what load() does for the leaves [first_leaf, last_leaf) of the piece, on the calling
  // thread. If a leaf does not match, the leaves before it are in the tensors, and the rest is undefined.
  virtual bool loads_leaves() const { return false; }
  virtual std::optional<std::size_t> load_leaves(const Plan& /*plan*/, ConstPacked /*from*/, std::size_t first_leaf,
                                                 std::size_t /*last_leaf*/) {
    return first_leaf;
  }

  // If captures_late(): compares the tensors, where they are, with the digests of a piece's leaves, after the work that
  // is enqueued on `stream`. Returns the number of the first leaf that differs, or nothing if the tensors hold that
  // piece. Throws Failure.
  virtual std::optional<std::size_t> verify(const Plan& /*plan*/, const std::uint64_t* /*digests*/, Stream /*stream*/) {
    return 0;
  }

  // Creates a StreamTimestamps, which calls `reached` for each of its points. The words of its points must be in the
  // memory `words`. The caller keeps this memory mapped as long as `owner` exists, and the StreamTimestamps keeps
  // `owner` as long as the GPU may write there. `words` must be whole pages. Returns null if the tensors are not on a
  // GPU, or if the GPU cannot write to `words`. The StreamTimestamps may outlive the device.
  virtual std::unique_ptr<StreamTimestamps> timestamps(Range /*words*/, std::shared_ptr<void> /*owner*/,
                                                       StreamTimestamps::Reached /*reached*/) {
    return nullptr;
  }

  // Number of the capture that start() began last, if it was not released and has not failed. GPU replication names a
  // capture by this number (Replicator::Piece). 0 if there is no such capture, or if tensors are not on a GPU.
  virtual std::uint64_t capture_number() const { return 0; }

  // allocate(): returns memory of the GPU. To free it waits for the GPU. copy_within(): enqueues a copy within the GPU
  // on `stream`. Both throw Failure, for example if no tensor is on a GPU.
  virtual std::shared_ptr<std::byte> allocate(std::size_t /*size_bytes*/) { refuse_without_gpu(); }
  virtual void copy_within(std::byte* /*to*/, const std::byte* /*from*/, std::size_t /*size_bytes*/,
                           Stream /*stream*/) {
    refuse_without_gpu();
  }

  // For GPU replication. new_communicator_id() makes the id with which members of a group meet; one member calls it.
  // replicator() creates one member's replicator. It receives into `receive_buffers`. These must be whole pages, and
  // the caller keeps them mapped as long as `failed` exists. check_replication() throws early what the other two
  // functions would throw, as far as that is known. All three throw Failure, for example if no tensor is on a GPU.
  virtual void check_replication(const char* const* /*environment*/) const { refuse_without_gpu(); }
  virtual Replicator::Id new_communicator_id() { refuse_without_gpu(); }
  virtual std::unique_ptr<Replicator> replicator(const Replicator::Group& /*group*/,
                                                 const Replicator::Settings& /*settings*/, Range /*receive buffers*/,
                                                 Replicator::Failed /*failed*/) {
    refuse_without_gpu();
  }

 private:
  [[noreturn]] static void refuse_without_gpu() {
    throw Failure(CKPT_ERR_INVALID, "no tensor of this rank is on a GPU");
  }
};

}  // namespace ckpt::device
