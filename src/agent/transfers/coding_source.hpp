// CodingSource is the replica source that gets a piece by encoding or decoding. If it cannot use one of the other
// pieces, it tries again without that piece, as long as the rest suffices.
#pragma once

#include <memory>

#include "agent/pieces/core_queue.hpp"
#include "agent/transfers/coding_job.hpp"
#include "agent/transfers/replica_source.hpp"

namespace ckpt::agent {

class CodingSource : public ReplicaSource {
 public:
  // What `dependencies` refers to outlives the source and the transport, and so does `queue`.
  CodingSource(const CodingJob::Dependencies& dependencies, CoreQueue& queue) : deps_(dependencies), queue_(queue) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;

 private:
  class Attempts;

  const CodingJob::Dependencies deps_;
  CoreQueue& queue_;
};

}  // namespace ckpt::agent
