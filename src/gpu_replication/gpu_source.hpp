// GpuSource is the replica source for pieces that arrive from GPU to GPU, and for parity that a GPU makes from them
// (docs/gpu.md). It takes a fetch if the piece should arrive in the receive buffer of a rank on this node, and if the
// fetch is not urgent. Other fetches go to the next replica source. If bytes do not arrive in time, it fetches them
// from the memory of the node that FetchRequest::order names, or lets the coding source make them.
#pragma once

#include <memory>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/coding_source.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
#include "gpu_replication/replication_manager.hpp"

namespace ckpt::agent {

class GpuSource : public ReplicaSource {
 public:
  // `replications`, `pool`, `queue` and `coding` outlive the source and the transport.
  GpuSource(ReplicationManager& replications, WorkerPool& pool, CoreQueue& queue,
            std::shared_ptr<TransportPort> transport, CodingSource& coding)
      : replications_(replications), pool_(pool), queue_(queue), transport_(std::move(transport)), coding_(coding) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;
  void ended(const core::StartFetch& order, const FetchOutcome& outcome) override;

 private:
  std::shared_ptr<RunningFetch> start_parity(const FetchRequest& request, const ReplicationManager::Place& place);

  ReplicationManager& replications_;
  WorkerPool& pool_;
  CoreQueue& queue_;
  const std::shared_ptr<TransportPort> transport_;
  CodingSource& coding_;
};

}  // namespace ckpt::agent
