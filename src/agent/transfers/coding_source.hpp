// The replica source that encodes parity and decodes lost pieces. It tries again without what it could not use, as long
// as the rest suffices.
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
