// The segments of this node's arena: found again at start, made and enlarged when they are needed, removed when not.
//
// Belongs to the core thread; only the making of a segment (reserving and touching its pages, copying what an outgrown
// one holds) runs on a thread of its own and comes back as a task.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core_queue.hpp"
#include "agent/piece_index.hpp"
#include "agent/worker_pool.hpp"
#include "arena/node_arena.hpp"
#include "base/error.hpp"
#include "protocol/node.hpp"

namespace ckpt::agent {

struct SegmentKey {
  protocol::Rank rank = protocol::held_rank;  // of the writer; held_rank: the agent
  std::string shard;
  auto operator<=>(const SegmentKey&) const = default;
};

// What a slot must be able to hold.
struct SlotNeed {
  std::uint64_t data_bytes = 0;
  std::uint64_t layout_bytes = 0;
};

class Segments {
 public:
  struct Limits {
    std::uint64_t budget_bytes = 0;  // 0: what the file system has
    std::uint32_t local_slots = 0;
    std::uint32_t held_slots = 0;
  };
  // `busy`: whether an unfinished transfer writes into a segment. `index` and `queue` outlive this object.
  Segments(arena::NodeArena& arena, const Limits& limits, PieceIndex& index, CoreQueue& queue,
           std::function<bool(const SegmentKey&)> busy);
  ~Segments();

  // At start: what is in the arena, into the index too. `granted` are the grants that a living trainer may be using:
  // their slots count as neither whole nor free.
  protocol::Recovered recover(const std::vector<protocol::Recovered::Granted>& granted,
                              std::vector<std::string>& notices);

  std::shared_ptr<arena::Segment> find(const SegmentKey& key) const;

  // Sees to it that the segments are there and large enough, all or none of the new ones; `extra_bytes` more must be
  // left afterwards. Calls `done` from the core thread, at once or later, with the reason where it failed.
  using Done = std::function<void(std::optional<Failure>)>;
  void ensure(const std::vector<std::pair<SegmentKey, SlotNeed>>& needs, std::uint64_t extra_bytes, Done done);

  // A transfer has ended: what waited for a segment not to be busy may go on.
  void unblock();

  void remove(const SegmentKey& key);

  // Segments whose files somebody cut off: nobody may touch their memory any more, and they are not found again.
  std::vector<std::pair<SegmentKey, std::shared_ptr<arena::Segment>>> take_damaged();
  // Of segments whose files have lost their names.
  std::uint64_t nameless_bytes() const;

  // Memory of the arena besides segments. Throws Failure (CKPT_ERR_NO_SPACE) where so much more does not fit.
  void check_space(std::uint64_t more_bytes) const { check_space({}, more_bytes); }
  void take_besides(std::uint64_t bytes) { besides_bytes_ += bytes; }
  void give_back_besides(std::uint64_t bytes) { besides_bytes_ -= bytes; }

  std::uint64_t bytes_used() const;
  std::uint64_t budget_bytes() const { return limits_.budget_bytes; }
  std::uint64_t space_left_bytes() const;
  const std::map<SegmentKey, std::shared_ptr<arena::Segment>>& all() const { return segments_; }

  // Bytes of a whole segment for such slots.
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
  bool outgrows_busy(const Request& request) const;
  void start_next();
  void make(Request request);
  void check_space(const std::vector<arena::SegmentSpec>& specs, std::uint64_t extra_bytes) const;
  void finish(std::shared_ptr<Made> made);
  void adopt(const SegmentKey& key, arena::Segment segment);

  arena::NodeArena& arena_;
  const Limits limits_;
  PieceIndex& index_;
  CoreQueue& queue_;
  const std::function<bool(const SegmentKey&)> busy_;
  std::map<SegmentKey, std::shared_ptr<arena::Segment>> segments_;
  std::deque<Request> waiting_;  // one is made at a time, so that checks see what earlier ones took
  std::deque<Request> blocked_;  // would enlarge a segment that a transfer writes into
  bool coding_inputs_ = false;
  std::uint64_t besides_bytes_ = 0;
  WorkerPool maker_{1};
};

}  // namespace ckpt::agent
