// Segment is one file of the arena. It has the slots of one shard, which only one process writes. The agent creates the
// file; the agent and the trainer map it.
//
// A Segment owns its mapping and its descriptor. Its slots point into the mapping. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "arena/arena_format.hpp"
#include "arena/slot.hpp"
#include "base/mapping.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::arena {

struct SegmentSpec {
  SegmentKind kind = SegmentKind::local;
  std::uint32_t rank = 0;   // for kind local: the rank that writes the segment
  std::uint32_t slots = 0;  // number of slots that have memory from the start
  std::string shard;
  std::uint64_t data_capacity_bytes = 0;      // for the data of each slot; rounded up to pages
  std::uint64_t manifest_capacity_bytes = 0;  // for the manifest of each slot; rounded up to pages (manifest_bytes())
  std::uint32_t slots_max = 0;                // most slots that grow() may make; at least `slots`
};
inline constexpr std::uint32_t segment_slots_max = 16;

// Returns the memory that a segment takes at first, in bytes: its header page and `spec.slots` slots.
std::uint64_t segment_bytes(const SegmentSpec& spec);
// Returns the memory that one slot of the segment takes, in bytes: its header page, its manifest and its data.
std::uint64_t slot_bytes(const SegmentSpec& spec);

class Segment {
 public:
  using Access = Mapping::Access;

  // Creates the file `path`, reserves the memory of its first slots, touches their pages on up to `threads` threads,
  // and marks the segment ready. The caller must have checked `spec`. Throws Failure (CKPT_ERR_NO_SPACE if there is not
  // enough memory). After a failure there is no file.
  static Segment create(const std::string& path, const SegmentSpec& spec, unsigned threads);

  // Maps an existing segment and checks its header. Throws Failure (CKPT_ERR_CORRUPT) if it is not a complete, ready
  // segment of a known format. If `fd` is given, `path` is only for messages.
  static Segment attach(UniqueFd fd, Access access, const std::string& path);
  static Segment attach(const std::string& path, Access access);

  // What the segment was created with. `slots` is the number of slots when this object was made; see slots().
  const SegmentSpec& spec() const { return shape_->spec; }
  // The number of slots that can be used: those that have memory, as far as this object has noticed.
  std::uint32_t slots() const { return shape_->slots.load(std::memory_order_acquire); }
  // Trainer: notices slots that the agent has added. Returns true if there are any.
  bool notice_growth();
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  // Memory that the segment takes: its header page and the slots that can be used.
  std::uint64_t size_bytes() const { return page_bytes + slots() * slot_bytes(spec()); }
  // False if somebody truncated the file. Touching the missing pages would kill the process.
  bool is_whole_file() const;
  // The mapping of the whole file. Do not touch what lies after the usable slots: it would take memory that nobody
  // counts.
  const Mapping& mapping() const { return mapping_; }

  // Agent: enlarges the segment to `slots_wanted` slots. Reserves their memory and touches their pages on up to
  // `threads` threads, and then counts them as usable. Throws Failure (CKPT_ERR_NO_SPACE if there is not enough
  // memory). After a failure the segment is as before.
  void grow(std::uint32_t slots_wanted, unsigned threads);
  // Agent: gives back memory that the file has after the usable slots. An agent that died in grow() leaves such memory.
  void release_uncounted();
  // Touches the pages of the usable slots on up to `threads` threads, so that later accesses cause no page faults.
  void populate(unsigned threads) const;
  // All bytes of one slot.
  std::span<std::byte> slot_memory(std::uint32_t index) const;

  // `index` must be below slots(); otherwise both throw Failure. writable_slot() needs Access::write.
  Slot slot(std::uint32_t index) const { return Slot(slot_header(index), bounds()); }
  WritableSlot writable_slot(std::uint32_t index) { return WritableSlot(slot_header(index), bounds()); }

 private:
  Segment(std::string path, UniqueFd fd, Mapping mapping, SegmentSpec spec);
  SegmentHeader* header() const { return reinterpret_cast<SegmentHeader*>(mapping_.data()); }
  SlotHeader* slot_header(std::uint32_t index) const;
  SlotBounds bounds() const { return {spec().shard, spec().data_capacity_bytes, spec().manifest_capacity_bytes}; }

  std::string path_;
  UniqueFd fd_;
  Mapping mapping_;
  struct Shape {
    const SegmentSpec spec;
    std::atomic<std::uint32_t> slots;
  };
  std::unique_ptr<Shape> shape_;  // slots refer to it, so it must not move with the segment
};

}  // namespace ckpt::arena
