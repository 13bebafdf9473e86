// StorageTier is the agent's access to persistent storage. It carries out the orders of the protocol's core on threads
// of its own and answers through the CoreQueue. It writes to the place that the option `storage` names. It reads from
// there and from the checkpoint sources in `others`. The core sees all of them as one storage. If several have a piece,
// it reads from the option's place.
//
// Only the agent's core thread uses it. The destructor stops reads and writes within 100 ms.
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

  // `index` and `queue` outlive this object. It calls `handle` and `note` on the core thread. If the option `storage`
  // is empty, it writes nothing and reads only from `others`. Throws Failure (CKPT_ERR_INVALID) if the option is
  // invalid.
  StorageTier(const Options& options, const std::vector<persist::CheckpointSourceFactory>& others,
              const PieceIndex& index, CoreQueue& queue, Handle handle, Note note);
  ~StorageTier();

  void list();
  void write(const core::StartWrite& write);
  void commit(const core::FinalizeCheckpoint& commit);

  // Calls `then` with the source that offers this shard: at once, or after listing all sources again. If none offers
  // the shard, calls `then` with the first source: a read from there fails and says that the shard is missing.
  void find_source(const std::string& shard, CheckpointId checkpoint,
                   const std::function<void(persist::ReadQueue&)>& then);

  persist::WriteCounters written() const { return writes_ ? writes_->counters() : persist::WriteCounters(); }
  // How many bytes of this checkpoint this agent has written. 0 if others wrote all of it, or if this agent has written
  // two newer ones since.
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
  std::unique_ptr<Round> round_;                              // the listing under way; null if none is
  bool list_again_ = false;                                   // the core asked again since that listing began
  std::map<CheckpointId, std::uint64_t> written_bytes_;       // to storage, of the two newest checkpoints
  // The source that offers each shard, as last listed.
  std::map<std::pair<CheckpointId, std::string>, std::size_t> offered_by_;
};

}  // namespace ckpt::agent
