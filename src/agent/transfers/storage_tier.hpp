// StorageTier is the agent's access to persistent storage. It carries out the orders of the protocol's core on threads
// of its own and answers through the CoreQueue. It writes to the option `storage`, and reads from there and from the
// places in `others`. The core sees all of them as one storage. If several have a piece, the option's comes first.
//
// Only the agent's core thread uses it. The destructor stops what is under way, within 100 ms.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/piece_index.hpp"
#include "core/events.hpp"
#include "options/options.hpp"
#include "persist/read_queue.hpp"
#include "persist/write_queue.hpp"

namespace ckpt::agent {

class StorageTier {
 public:
  using Handle = std::function<void(core::Event event)>;
  using Note = std::function<void(const std::string& text)>;

  // All outlive this object. `handle` and `note` are called on the core thread. If the storage option is empty,
  // checkpoints are read only from `others`. Throws Failure (CKPT_ERR_INVALID) for an invalid location.
  StorageTier(const Options& options, const std::vector<persist::CheckpointSourceFactory>& others,
              const PieceIndex& index, CoreQueue& queue, Handle handle, Note note);
  ~StorageTier();

  void list();
  void write(const core::StartWrite& write);
  void commit(const core::FinalizeCheckpoint& commit);

  // Calls `then` with the source that offers this shard: at once, or after another look at all sources. If none offers
  // it, that is the first one, which says so.
  void find_source(const std::string& shard, CheckpointId checkpoint,
                   const std::function<void(persist::ReadQueue&)>& then);

  persist::WriteCounters written() const { return writes_ ? writes_->counters() : persist::WriteCounters(); }
  // Bytes that this node wrote of a checkpoint. 0 if other nodes or an earlier agent wrote all of it.
  std::uint64_t bytes_written(CheckpointId step) const;

 private:
  struct Round;
  using Then = std::function<void(const core::StorageListed& listed)>;
  void look(Then then);
  void take_listing(std::size_t source, const persist::ReadOutcome& outcome, persist::Listing listing);
  core::StorageListed merge(const Round& round);
  void wrote(CheckpointId checkpoint, std::uint64_t bytes);

  const PieceIndex& index_;
  CoreQueue& queue_;
  const Handle handle_;
  const Note note_;
  std::unique_ptr<persist::WriteQueue> writes_;               // null if there is no storage
  std::vector<std::unique_ptr<persist::ReadQueue>> sources_;  // storage first
  std::unique_ptr<Round> round_;                              // the listing under way
  bool list_again_ = false;                                   // the core asked again since it began
  std::map<CheckpointId, std::uint64_t> written_bytes_;       // of the newest checkpoints only
  // The source that offers each shard, as last listed.
  std::map<std::pair<CheckpointId, std::string>, std::size_t> offered_by_;
};

}  // namespace ckpt::agent
