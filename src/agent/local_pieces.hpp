// LocalPieces drops pieces from this node's memory when the protocol's core orders that. It also verifies a piece again
// when somebody reports that the piece is damaged. Only the agent's core thread uses it. Other threads compute the
// digests.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "agent/event_log.hpp"
#include "agent/peers.hpp"
#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/segments.hpp"

namespace ckpt::agent {

class LocalPieces {
 public:
  // What LocalPieces uses. All of it outlives the object.
  struct Dependencies {
    Segments& segments;
    PieceIndex& index;
    CoreQueue& queue;
    WorkerPool& digests;
    Peers& peers;
    EventLog& event_log;
    EventSink& core;
  };
  explicit LocalPieces(const Dependencies& dependencies) : deps_(dependencies) {}

  void carry_out(const core::DropSlot& drop);
  void carry_out(const core::ReleaseSegment& release);

  // Computes the digests of the slot's piece again, tells the core if the piece is damaged, then calls `then` on the
  // core thread. If the slot has no piece, or is being verified already, calls `then` at once.
  void verify(const core::SlotRef& slot, std::function<void()> then);
  // Verifies a piece of this node that another node received damaged. With `request.is_wrong`, the piece is parity that
  // matches its digests but was computed wrongly. Only a node that decodes with this parity can notice that. So this
  // function verifies nothing and tells the core at once.
  void verify(const core::VerifyRequest& request);

  // Call this when a piece from `node` arrived damaged. Perhaps it was damaged on the way only. So this asks that node
  // to verify its piece. `is_wrong`: the piece matches its digests, but is not the parity of its group's shards.
  void source_damaged(const std::string& shard, CheckpointId checkpoint, core::NodeId node, bool is_wrong);

  // Drops the pieces in files that somebody truncated. The kernel kills any process that touches memory beyond the end
  // of a file (SIGBUS), so call this often.
  void drop_truncated();

 private:
  const Dependencies deps_;
  std::set<core::SlotRef> verifying_;
};

}  // namespace ckpt::agent
