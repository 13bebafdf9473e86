// A segment: one file of the arena with the slots of one shard, written by one writer (arena_format.hpp).
//
// Owns its mapping and its descriptor. Slots are views into the mapping. Its functions are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "arena/arena_format.hpp"
#include "arena/slot.hpp"
#include "base/mapping.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::arena {

struct SegmentSpec {
  SegmentKind kind = SegmentKind::local;
  std::uint32_t rank = 0;  // of the writer, for kind local
  std::uint32_t slots = 0;
  std::string shard;
  std::uint64_t data_capacity_bytes = 0;      // of a slot; rounded up to pages
  std::uint64_t manifest_capacity_bytes = 0;  // likewise; see manifest_bytes()
};
inline constexpr std::uint32_t slots_max = 16;

// Size of the file, all slots included.
std::uint64_t segment_bytes(const SegmentSpec& spec);

class Segment {
 public:
  using Access = Mapping::Access;

  // Creates the file `path`, reserves and touches all its pages on up to `threads` threads, and marks it ready. The
  // caller checks `spec`. Throws Failure, CKPT_ERR_NO_SPACE if there is not enough memory, and then leaves no file
  // behind.
  static Segment create(const std::string& path, const SegmentSpec& spec, unsigned threads);

  // Maps an existing segment and checks everything in it. Throws Failure (CKPT_ERR_CORRUPT) if it is not a whole, ready
  // segment of this format. `path` is for messages.
  static Segment attach(UniqueFd fd, Access access, const std::string& path);
  static Segment attach(const std::string& path, Access access);

  const SegmentSpec& spec() const { return *spec_; }
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  std::uint64_t size_bytes() const { return mapping_.size_bytes(); }
  // False if somebody truncated the file. Touching the missing pages would kill the process.
  bool is_whole_file() const;
  const Mapping& mapping() const { return mapping_; }

  // slot < spec().slots: both throw Failure if it is not. A writable slot needs Access::write.
  Slot slot(std::uint32_t index) const { return Slot(slot_header(index), bounds()); }
  WritableSlot writable_slot(std::uint32_t index) { return WritableSlot(slot_header(index), bounds()); }

 private:
  Segment(std::string path, UniqueFd fd, Mapping mapping, SegmentSpec spec);
  SlotHeader* slot_header(std::uint32_t index) const;
  SlotBounds bounds() const { return {spec_->shard, spec_->data_capacity_bytes, spec_->manifest_capacity_bytes}; }

  std::string path_;
  UniqueFd fd_;
  Mapping mapping_;
  std::unique_ptr<const SegmentSpec> spec_;  // slots refer to it, so it must not move with the segment
};

}  // namespace ckpt::arena
