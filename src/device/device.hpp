// Where tensors live, and how their bytes get into a slot and back. One interface for host memory and for CUDA.
//
// A device belongs to one engine and is used by one thread, the training thread. While a started copy runs, plans,
// tensors and destination belong to the device: until `done` has been called or cancel() has returned.
//
// A stream is a CUstream, null for the legacy default one; the host's device knows none and ignores it.
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
#include "device/replicator.hpp"
#include "kernels/copy_digest.hpp"

namespace ckpt::device {

// The tensors of one shard in the order of its layout. Made once per layout, used every iteration. Immutable.
class Plan {
 public:
  // Of a tensor; null only where its size is 0.
  struct Region {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
    ckpt_memory memory = CKPT_HOST;
  };
  explicit Plan(const std::vector<Region>& regions);

  // Of `size_bytes` of the packed bytes from `first_byte` on.
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

// As many as start() takes.
inline constexpr std::size_t plans_max = 8;

// A piece in host memory, 64-byte aligned, and the digests of its leaves.
struct Packed {
  std::byte* data;
  std::uint64_t* digests;
};
struct ConstPacked {
  const std::byte* data;
  const std::uint64_t* digests;
};

// Host memory that the engine has mapped.
struct Range {
  std::byte* data;
  std::size_t size_bytes;
};

using Stream = void*;

// Points of streams: the GPU writes a word when it gets to one, and a thread of the timeline tells a little later when
// that was. Thread-safe; does not throw.
class StreamTimestamps {
 public:
  // Points of one channel are taken to be reached in the order in which they were added.
  static constexpr std::uint32_t tracks_max = 32;
  struct Point {
    std::uint32_t track = 0;
    std::atomic<std::uint32_t>* word = nullptr;  // null: none
    std::uint32_t value = 0;
  };
  // In the order of the times, but for those of points that a channel held up. On a thread of the timeline; does not
  // throw.
  using Reached = std::function<void(std::uint32_t track, Clock::time_point at)>;

  virtual ~StreamTimestamps() = default;
  // Behind what is enqueued on `stream`, which does not wait for it. False, and nothing is written and told, where the
  // GPU does not take it: a stream that is being captured into a graph, thousands of points that were not reached, an
  // error that has ended the context.
  virtual bool add(Stream stream, const Point& point) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // Gets ready for tensors in this kind of memory, of which `data` is one. Throws Failure where they are out of reach;
  // its sentence follows after a tensor's name.
  virtual void reach(ckpt_memory memory, const void* data) = 0;
  // From now on pieces go to these ranges, and not to the ones before, which may be unmapped afterwards. Not while a
  // copy runs. Does not throw: where it fails, the device is broken().
  virtual void attach(std::vector<Range> ranges) = 0;
  // Whether nothing can be captured any more, at least until the next attach(); failure() says why.
  virtual bool broken() const = 0;
  // One sentence about what failed last; empty if nothing did.
  virtual std::string failure() const = 0;
  // Device memory that copies pass through; 0 where there is none. One sentence where it is less than was asked for.
  virtual std::uint64_t staging_bytes() const { return 0; }
  virtual std::string shortage() const { return {}; }

  // Starts to copy and digest up to plans_max pieces, and copies one more before it returns (CUDA: before anything
  // later on `stream`). CUDA: all of it after what was enqueued on `stream` before. One start() at a time; does not
  // throw.
  struct Copy {
    const Plan* plan = nullptr;
    Packed to{};
  };
  virtual void start(std::span<const Copy> overlapped, const Copy& synchronous, Stream stream) = 0;

  // The tensors may change afterwards: on the host once this returns, which waits for the copy; with CUDA by what is
  // enqueued on `streams` from then on, and the host does not wait. `done` is called once, with whether the pieces are
  // whole: before this returns, or later on a thread of the device; it does not throw. False, and `done` is not called,
  // where the copy did not end before the deadline or failed: cancel() it.
  using Done = std::function<void(bool whole)>;
  virtual bool release(std::span<const Stream> streams, Deadline deadline, Done done) = 0;
  // Gives the started copy up. When it returns, nothing reads the tensors or writes the destination any more, and
  // `done` is not called any more.
  virtual void cancel() = 0;

  // Copies a piece back into the tensors, after what was enqueued on `stream` before, and returns when they hold it;
  // each leaf is verified. Returns the number of a leaf that does not match; the tensors are undefined then. Throws
  // Failure.
  virtual std::optional<std::size_t> load(const Plan& plan, ConstPacked from, Stream stream) = 0;

  // A timeline whose words are in these whole pages, which stay mapped while anybody owns `owner`. Null where there is
  // none: tensors are not on a GPU, or it cannot write such words. It may outlive the device.
  virtual std::unique_ptr<StreamTimestamps> timestamps(Range /*words*/, std::shared_ptr<void> /*owner*/,
                                                       StreamTimestamps::Reached /*reached*/) {
    return nullptr;
  }

  // What the members of a group meet with, made by one of them; and the path of one of them, to these whole pages,
  // which stay mapped as long as anybody owns `failed`. check_replication() finds out early what they would refuse.
  // Throw Failure, also where no tensor is on a GPU.
  virtual void check_replication(const char* const* /*environment*/) const { refuse_replication(); }
  virtual Replicator::Id new_communicator_id() { refuse_replication(); }
  virtual std::unique_ptr<Replicator> replicator(const Replicator::Group& /*group*/,
                                                 const Replicator::Settings& /*settings*/, Range /*receive buffers*/,
                                                 Replicator::Failed /*failed*/) {
    refuse_replication();
  }

 private:
  [[noreturn]] static void refuse_replication() {
    throw Failure(CKPT_ERR_INVALID, "no tensor of this rank is on a GPU");
  }
};

}  // namespace ckpt::device
