// Segments manages the segment files in this node's arena. It finds them when the agent starts, makes and enlarges them
// on demand, and removes those that nobody needs.
//
// Only the agent's core thread uses it. Making a segment is slow: it reserves and touches memory, and copies what a
// smaller segment had. So it runs on another thread and comes back as a task.
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

struct SegmentKey {
  core::Rank rank = core::held_rank;  // the rank that writes; held_rank: the agent writes
  std::string shard;
  auto operator<=>(const SegmentKey&) const = default;
};

// How large a segment's slots must be, and how many it must have.
struct SlotNeed {
  std::uint64_t data_bytes = 0;
  std::uint64_t layout_bytes = 0;
  std::uint32_t slots = 0;  // at least; 0: as many as a segment starts with
};

class Segments {
 public:
  struct Limits {
    std::uint64_t budget_bytes = 0;     // 0: all that the file system has
    std::uint32_t local_slots = 0;      // with which a rank's own segment starts
    std::uint32_t local_slots_max = 0;  // up to which it may grow
    std::uint32_t held_slots = 0;
  };
  // `busy` says whether an unfinished transfer writes to a segment. `index` and `queue` outlive this object.
  Segments(arena::NodeArena& arena, const Limits& limits, PieceIndex& index, CoreQueue& queue,
           std::function<bool(const SegmentKey&)> busy);
  ~Segments();

  // Call this at start: it finds the pieces in the arena and adds them to the index. `granted`: grants that living
  // trainers may be using. Their slots count neither as whole nor as free.
  core::Recovered recover(const std::vector<core::Recovered::Granted>& granted, std::vector<std::string>& notices);

  std::shared_ptr<arena::Segment> find(const SegmentKey& key) const;

  // Makes or enlarges segments until all needs are met; it makes all new segments or none. It adds further slots to a
  // segment in place; larger slots go into a new segment. `extra_bytes` must be left afterwards. Calls `done` on the
  // core thread, at once or later, with the reason if it failed.
  using Done = std::function<void(std::optional<Failure>)>;
  void ensure(const std::vector<std::pair<SegmentKey, SlotNeed>>& needs, std::uint64_t extra_bytes, Done done);

  // Call this when a transfer has ended. Requests that waited for its segment may go on.
  void unblock();

  void remove(const SegmentKey& key);

  // Returns the segments whose files somebody truncated. Nobody may touch their memory any more, and find() no longer
  // returns them.
  std::vector<std::pair<SegmentKey, std::shared_ptr<arena::Segment>>> take_damaged();
  // Bytes of segments whose files were unlinked.
  std::uint64_t nameless_bytes() const;

  // Throws Failure (CKPT_ERR_NO_SPACE) if `more_bytes` do not fit.
  void check_space(std::uint64_t more_bytes) const;
  // Memory of the arena outside segments.
  void take_besides(std::uint64_t bytes) { besides_bytes_ += bytes; }
  void give_back_besides(std::uint64_t bytes) { besides_bytes_ -= bytes; }

  std::uint64_t bytes_used() const;
  std::uint64_t budget_bytes() const { return limits_.budget_bytes; }
  std::uint64_t space_left_bytes() const;
  const std::map<SegmentKey, std::shared_ptr<arena::Segment>>& all() const { return segments_; }

  // The size in bytes of a whole segment for such slots.
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
  std::deque<Request> waiting_;  // one request at a time, so that each check counts what earlier ones took
  std::deque<Request> blocked_;  // requests to enlarge a segment that a transfer writes to
  bool making_ = false;
  std::uint64_t besides_bytes_ = 0;
  WorkerPool maker_{1};
};

}  // namespace ckpt::agent
