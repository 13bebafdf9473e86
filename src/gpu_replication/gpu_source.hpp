// GpuSource is the replica source for pieces that arrive from GPU to GPU (docs/gpu.md). It takes a fetch if the piece
// should arrive in the receive buffer of a rank on this node, and if the fetch is not urgent. Other fetches go to the
// next replica source. If bytes do not arrive in time, it fetches them from the memory of the node that
// FetchRequest::order names.
#pragma once

#include <memory>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
#include "gpu_replication/replication_manager.hpp"

namespace ckpt::agent {

class GpuSource : public ReplicaSource {
 public:
  // `replications`, `pool` and `queue` outlive the source and the transport.
  GpuSource(ReplicationManager& replications, WorkerPool& pool, CoreQueue& queue,
            std::shared_ptr<TransportPort> transport)
      : replications_(replications), pool_(pool), queue_(queue), transport_(std::move(transport)) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;
  void ended(const core::StartFetch& order, const FetchOutcome& outcome) override;

 private:
  ReplicationManager& replications_;
  WorkerPool& pool_;
  CoreQueue& queue_;
  const std::shared_ptr<TransportPort> transport_;
};

}  // namespace ckpt::agent
