// CodingSource is the replica source that gets a piece by encoding or decoding. If one of the pieces that it reads
// turns out to be unusable, it tries again without that piece, as long as the rest suffices.
#pragma once

#include <memory>

#include "agent/pieces/core_queue.hpp"
#include "agent/transfers/coding_job.hpp"
#include "agent/transfers/replica_source.hpp"

namespace ckpt::agent {

class CodingSource : public ReplicaSource {
 public:
  // The source and the transport must end before `queue` and whatever `dependencies` refers to.
  CodingSource(const CodingJob::Dependencies& dependencies, CoreQueue& queue) : deps_(dependencies), queue_(queue) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override { return start(request, nullptr); }
  // The same for parity that is also made elsewhere on this node. Takes what is made there, and makes the rest.
  std::shared_ptr<RunningFetch> start(const FetchRequest& request, std::shared_ptr<const MadeParity> made);

 private:
  class Attempts;

  const CodingJob::Dependencies deps_;
  CoreQueue& queue_;
};

}  // namespace ckpt::agent
