// The pieces in this node's memory, as the core orders them to be dropped, and as others report them to be damaged.
// Belongs to the core thread; digests are computed on the digest threads.
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
  // All outlive this object.
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

  // Computes the piece's digests again, tells the core if it is damaged, then calls `then`.
  void verify(const core::SlotRef& slot, std::function<void()> then);
  // The same for a piece that came damaged from here. Parity that is whole and wrong shows only to who decodes with it.
  void verify(const core::VerifyRequest& request);

  // A piece came damaged from that node, which is asked to verify it. It was damaged on the way or is damaged there.
  // With `is_wrong` it matches its digests but does not fit its group.
  void source_damaged(const std::string& shard, CheckpointId checkpoint, core::NodeId node, bool is_wrong);

  // Drops what lay in files that somebody cut off. Whoever touches memory beyond the end of a file is killed (SIGBUS),
  // so this is to be called often.
  void drop_truncated();

 private:
  const Dependencies deps_;
  std::set<core::SlotRef> verifying_;
};

}  // namespace ckpt::agent
