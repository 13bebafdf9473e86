// LocalPieces drops pieces from this node's memory when the protocol's core orders it. It also verifies a piece again
// when another node reports that the piece is damaged. Only the agent's core thread uses it. Other threads compute the
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

  // Computes the piece's digests again, tells the core if the piece is damaged, then calls `then`.
  void verify(const core::SlotRef& slot, std::function<void()> then);
  // The same for a piece that another node received damaged from here. If the request says so, the piece is parity that
  // matches its digests and is wrong. Only a node that decodes with such parity can notice that.
  void verify(const core::VerifyRequest& request);

  // A piece from `node` arrived damaged, on the way or already there. Asks that node to verify it. `is_wrong`: the
  // piece matches its digests but does not fit its group.
  void source_damaged(const std::string& shard, CheckpointId checkpoint, core::NodeId node, bool is_wrong);

  // Drops the pieces in files that somebody truncated. The kernel kills any process that touches memory beyond the end
  // of a file (SIGBUS), so call this often.
  void drop_truncated();

 private:
  const Dependencies deps_;
  std::set<core::SlotRef> verifying_;
};

}  // namespace ckpt::agent
