// Segments manages the segment files in this node's arena. It finds them when the agent starts, makes and enlarges them
// on demand, and removes those that nobody needs.
//
// Only the agent's core thread uses it. Making a segment is slow, because that reserves and touches memory, and copies
// the pieces of a smaller segment. So another thread makes it, and then posts a task to the core thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "arena/node_arena.hpp"
#include "base/error.hpp"
#include "core/node.hpp"

namespace ckpt::agent {

// Names a segment of this node.
struct SegmentKey {
  core::Rank rank = core::held_rank;  // the rank whose trainer writes it; held_rank: the agent writes it
  std::string shard;
  auto operator<=>(const SegmentKey&) const = default;
};

// How large the slots of a segment must be, and how many it must have.
struct SlotNeed {
  std::uint64_t data_bytes = 0;    // largest piece
  std::uint64_t layout_bytes = 0;  // largest layout
  std::uint32_t slots = 0;         // least number of slots; 0: as many as a segment starts with
  bool has_spare = false;          // one slot more, for a private shard: its trainer keeps a free slot
};

class Segments {
 public:
  struct Limits {
    std::uint64_t budget_bytes = 0;     // most memory for the arena; 0: all that the file system has
    std::uint32_t local_slots = 0;      // slots with which a segment of a rank starts
    std::uint32_t local_slots_max = 0;  // most slots of a segment of a rank
    std::uint32_t held_slots = 0;       // slots of a segment that the agent writes
  };
  // `busy` says whether an unfinished transfer writes to a segment. All references outlive this object.
  Segments(arena::NodeArena& arena, const Limits& limits, PieceIndex& index, CoreQueue& queue,
           std::function<bool(const SegmentKey&)> busy);
  ~Segments();

  // Call this once, at start. Finds the segments and pieces in the arena, adds the pieces to the index, and returns
  // what it found. `granted`: grants that living trainers may be using. Their slots count neither as whole nor as free.
  // Adds sentences for people to `notices`.
  core::Recovered recover(const std::vector<core::Recovered::Granted>& granted, std::vector<std::string>& notices);

  // Null if there is no such segment.
  std::shared_ptr<arena::Segment> find(const SegmentKey& key) const;

  // Makes or enlarges segments until all needs are met. A segment that needs more slots grows. If it needs larger
  // slots, or more of them than its file can have, a new segment replaces it, and its pieces are copied there. Makes
  // all new segments or none. Fails if there is not enough memory for that and `extra_bytes` more. Calls `done` on the
  // core thread, at once or later: with nothing, or with the reason of a failure.
  using Done = std::function<void(std::optional<Failure>)>;
  void ensure(const std::vector<std::pair<SegmentKey, SlotNeed>>& needs, std::uint64_t extra_bytes, Done done);

  // Call this when a transfer has ended. Calls of ensure() that waited for the transfer's segment may go on.
  void unblock();

  // Removes the segment and its file, if there is one. Readers of its pieces keep it mapped.
  void remove(const SegmentKey& key);

  // Returns the segments whose files somebody truncated. Nobody may touch their memory any more, and find() no longer
  // returns them.
  std::vector<std::pair<SegmentKey, std::shared_ptr<arena::Segment>>> take_damaged();
  // Bytes of segments whose files somebody unlinked: no other process can open them any more.
  std::uint64_t nameless_bytes() const;

  // Throws Failure (CKPT_ERR_NO_SPACE) if the arena has no room for `more_bytes`.
  void check_space(std::uint64_t more_bytes) const;
  // Count memory of the arena outside segments, such as a receive buffer, as used and as free again.
  void take_besides(std::uint64_t bytes) { besides_bytes_ += bytes; }
  void give_back_besides(std::uint64_t bytes) { besides_bytes_ -= bytes; }

  std::uint64_t bytes_used() const;
  std::uint64_t budget_bytes() const { return limits_.budget_bytes; }
  std::uint64_t space_left_bytes() const;
  const std::map<SegmentKey, std::shared_ptr<arena::Segment>>& all() const { return segments_; }

  // Returns the size that a segment for this need would have.
  std::uint64_t segment_bytes(const SegmentKey& key, const SlotNeed& need) const;

 private:
  struct Request {
    std::vector<std::pair<SegmentKey, SlotNeed>> needs;
    std::uint64_t extra_bytes = 0;
    Done done;
  };
  struct Made;

  arena::SegmentSpec spec_for(const SegmentKey& key, const SlotNeed& need) const;
  bool large_enough(const SegmentKey& key, const SlotNeed& need) const;
  bool is_outgrown(const SegmentKey& key, const SlotNeed& need) const;
  bool outgrows_busy(const Request& request) const;
  void start_next();
  void make(Request request);
  void finish(std::shared_ptr<Made> made);
  void adopt(const SegmentKey& key, arena::Segment segment);

  arena::NodeArena& arena_;
  const Limits limits_;
  PieceIndex& index_;
  CoreQueue& queue_;
  const std::function<bool(const SegmentKey&)> busy_;
  std::map<SegmentKey, std::shared_ptr<arena::Segment>> segments_;
  std::deque<Request> waiting_;  // served one at a time, so that each check counts the memory that earlier ones took
  std::deque<Request> blocked_;  // these wait until no transfer writes to the segments that they enlarge
  bool making_ = false;
  std::uint64_t besides_bytes_ = 0;
  WorkerPool maker_{1};
};

}  // namespace ckpt::agent
