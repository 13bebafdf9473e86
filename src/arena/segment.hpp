// Segment is one file of the arena. It has the slots of one shard, and one process writes them. The agent creates it;
// the agent and the trainer map it.
//
// It owns its mapping and its descriptor. Slots point into the mapping. Thread-safe.
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
  std::uint32_t rank = 0;   // of the writer, for kind local
  std::uint32_t slots = 0;  // with memory from the start
  std::string shard;
  std::uint64_t data_capacity_bytes = 0;      // of a slot; rounded up to pages
  std::uint64_t manifest_capacity_bytes = 0;  // likewise; see manifest_bytes()
  std::uint32_t slots_max = 0;                // up to which grow() may add slots; at least `slots`
};
inline constexpr std::uint32_t segment_slots_max = 16;

// Memory that the segment takes: its header page and `spec.slots` slots.
std::uint64_t segment_bytes(const SegmentSpec& spec);
// Memory that each further slot takes.
std::uint64_t slot_bytes(const SegmentSpec& spec);

class Segment {
 public:
  using Access = Mapping::Access;

  // Creates the file `path`, reserves and touches the pages of its slots on up to `threads` threads, and marks it
  // ready. The caller checks `spec`. Throws Failure, CKPT_ERR_NO_SPACE if there is not enough memory, and then leaves
  // no file behind.
  static Segment create(const std::string& path, const SegmentSpec& spec, unsigned threads);

  // Maps an existing segment and checks everything in it. Throws Failure (CKPT_ERR_CORRUPT) if it is not a whole, ready
  // segment of this format. `path` is for messages.
  static Segment attach(UniqueFd fd, Access access, const std::string& path);
  static Segment attach(const std::string& path, Access access);

  // Its `slots` is the number of slots when this object was made.
  const SegmentSpec& spec() const { return shape_->spec; }
  // The number of slots that can be used: those with memory, as far as this object knows.
  std::uint32_t slots() const { return shape_->slots.load(std::memory_order_acquire); }
  // Trainer: takes notice of slots that the agent has added. True if there are any.
  bool notice_growth();
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  // Memory that it takes.
  std::uint64_t size_bytes() const { return page_bytes + slots() * slot_bytes(spec()); }
  // False if somebody truncated the file. Touching the missing pages would kill the process.
  bool is_whole_file() const;
  // Of the whole file. Touching what lies behind the slots takes memory that nobody counts.
  const Mapping& mapping() const { return mapping_; }

  // Agent: reserves and touches memory for so many slots in all, then counts them. Throws Failure,
  // CKPT_ERR_NO_SPACE if there is not enough memory, and then leaves the segment as it was.
  void grow(std::uint32_t slots_wanted, unsigned threads);
  // Agent: gives back memory of slots that are not counted. An agent that dies in grow() leaves some.
  void release_uncounted();
  // Brings the slots that can be used into this process's page tables.
  void populate(unsigned threads) const;
  // All bytes of one slot.
  std::span<std::byte> slot_memory(std::uint32_t index) const;

  // slot < slots(): both throw Failure if it is not. A writable slot needs Access::write.
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
