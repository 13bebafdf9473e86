// RecomputeSource is the replica source that gets a main shard by repeating the update that led to it. It fetches the
// gradient record (arena/gradient_record.hpp) from the node that captured the shard, and repeats the update on the
// previous checkpoint, of which this node has a copy. core/repeated_updates.hpp decides what is repeated and whether
// the result counts. If anything is missing or differs, RecomputeSource lets the peer source fetch the whole piece.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
#include "core/repeated_updates.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

// The name under which agents fetch the gradient record of a piece from each other. No shard has such a name.
std::string record_name(const std::string& shard);

// Returns the gradient record with this name, for a node that asks for it. What comes as its manifest: the number of
// the record's leaves, their digests (8 bytes each), then the manifest of the record's piece. Nothing if `name` names
// no record, or there is none. Any thread.
std::optional<net::ServedPiece> serve_record(const PieceIndex& index, const net::PieceName& name);

// Main shards that came from other nodes, counted since the agent started.
struct RecomputeCounters {
  std::uint64_t recomputed = 0;          // by repeating an update
  std::uint64_t recomputed_in_vain = 0;  // in full, because the repeated update did not give the owner's bytes
  std::uint64_t not_recomputed = 0;      // in full, because there was nothing to repeat the update with
};

class RecomputeSource : public ReplicaSource {
 public:
  // All references outlive the source and the transport. `peer` fetches whole pieces. `notice` takes a sentence for
  // people.
  struct Dependencies {
    WorkerPool& pool;
    CoreQueue& queue;
    std::shared_ptr<TransportPort> transport;
    const PieceIndex& index;
    ReplicaSource& peer;
    RecomputeCounters& counters;
    std::function<void(const std::string&)> notice;
  };
  explicit RecomputeSource(Dependencies dependencies) : deps_(std::move(dependencies)) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;

 private:
  class Recomputation;
  using End = core::RepeatEnd;

  void ended(const core::StartFetch& order, End end, const std::string& why);

  const Dependencies deps_;
  core::RepeatedUpdates decisions_;
};

}  // namespace ckpt::agent
