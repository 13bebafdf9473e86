// Arena is the checkpoint memory of a simulated node. It has only what the protocol sees of the real arena
// (src/arena/arena_format.hpp). It outlives the agent and the trainers. A slot has one number in place of bytes: the
// digest of the bytes that a real slot would hold. A piece is intact if its header has the same digest.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/halts.hpp"
#include "core/types.hpp"
#include "schedule/idle_forecast.hpp"

namespace ckpt::sim {

using core::NodeId;
using core::PieceInfo;
using core::Rank;
using core::SlotRef;

// How the update that led to a piece can be repeated, as a gradient record says.
struct UpdateRecord {
  CheckpointId base;
  std::uint64_t step = 0;  // what the update does to the state
  bool is_all = true;      // false: something else changed the state, too. Nobody on the nodes can see this
};

struct Slot {
  // A real slot has these, too.
  bool sealed = false;
  PieceInfo header;                    // valid if the slot is sealed
  std::uint64_t bytes = 0;             // the digest of its bytes
  std::optional<UpdateRecord> record;  // of the update that led to the piece, captured beside it
  CheckpointId dropped;  // an agent dropped this checkpoint's piece here: agents that attach later ignore it

  // These are for the invariants only. Nobody on the node can see them.
  bool counted = false;  // the core was told that it holds a whole piece, and has not dropped it
  core::TimeMs counted_since = 0;
  bool draining = false;         // dropped, and not released yet
  int readers = 0;               // how many transfers and restores read it
  std::uint64_t filled_by = 0;   // the transfer that writes it; 0: none
  std::uint64_t granted_to = 0;  // the trainer instance that may write it; 0: none

  bool intact() const { return sealed && bytes == header.root_digest; }
  bool findable() const { return sealed && header.checkpoint != dropped; }
};

// The rank that writes the segment's slots, and the shard. The rank is held_rank for a peer's shard.
using SegmentKey = std::pair<Rank, std::string>;
using Segment = std::vector<Slot>;

// The control page that a simulated trainer and its agent share.
struct Control {
  std::uint64_t instance = 0;  // the trainer that maps it
  std::string main_shard;
  std::string private_shard;

  std::uint64_t grant = 0;       // number of the newest grant; 0: none yet
  std::vector<SlotRef> slots;    // of the newest grant
  std::optional<SlotRef> spare;  // of the newest grant: the spare slot
  std::int64_t resume_at = 0;
  CheckpointId committed;
  bool fenced = false;
  std::uint64_t halt = 0;  // number of the halt; 0: there is none
  std::optional<std::int64_t> halt_at;

  std::uint64_t used_grant = 0;  // number of the newest grant that the trainer has used
  bool used_spare = false;       // then the private shard is in the spare slot
  std::int64_t attempted = -1;
  std::int64_t capturing = -1;
  CheckpointId sealing;               // what it seals in the slots of its grant
  core::FreezeAnswer freeze;          // its answer to the halt
  std::vector<std::string> reserved;  // the segments that the trainer has mapped

  // What the trainer's hooks write. An agent that does not read for long loses marks.
  static constexpr std::size_t marks_max = 64;
  std::deque<schedule::Mark> marks;  // the newest of those made
  std::uint64_t marks_made = 0;
  bool is_paused = false;
  void mark(schedule::Mark mark) {
    marks.push_back(mark);
    ++marks_made;
    if (marks.size() > marks_max) marks.pop_front();
  }

  bool grant_is_open() const { return grant != used_grant; }
  // Where the private shard of the grant is, once the grant is used.
  const SlotRef& own_slot() const { return used_spare ? *spare : slots.back(); }
  // The slots for its private shard that the trainer may write.
  std::vector<SlotRef> own_slots() const {
    std::vector<SlotRef> own;
    if (slots.empty()) return own;
    if (grant_is_open() || used_spare) own.push_back(slots.back());
    if (spare && (grant_is_open() || !used_spare)) own.push_back(*spare);
    return own;
  }
};

struct Arena {
  std::uint64_t id = 0;
  std::map<SegmentKey, Segment> segments;
  std::map<Rank, Control> controls;
  CheckpointId highest_commit;
  CheckpointId newest_seen;
  CheckpointId newest_damaged;
  std::uint64_t epoch = 0;

  Slot* find(const SlotRef& ref);
  const Slot* find(const SlotRef& ref) const;
  void make_segment(Rank rank, const std::string& shard, std::size_t slots);  // does nothing if there is one

  // Calls visit(SlotRef, Slot&) for every slot, in a fixed order.
  template <class Visit>
  void for_each(const Visit& visit) {
    for (auto& [key, segment] : segments) {
      for (std::size_t i = 0; i < segment.size(); ++i) {
        visit(SlotRef{key.first, key.second, static_cast<std::uint8_t>(i)}, segment[i]);
      }
    }
  }
};

}  // namespace ckpt::sim
