// StorageReader is the replica source that reads a piece from storage, or from another checkpoint source that all nodes
// can read.
#pragma once

#include <memory>
#include <string>

#include "agent/pieces/core_queue.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/storage_tier.hpp"

namespace ckpt::agent {

class StorageReader : public ReplicaSource {
 public:
  // `storage` and `queue` outlive the source. `storage` is null if this agent has no storage.
  StorageReader(StorageTier* storage, CoreQueue& queue) : storage_(storage), queue_(queue) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;

 private:
  class Read;

  StorageTier* const storage_;
  CoreQueue& queue_;
};

}  // namespace ckpt::agent
