// RecomputeSource is the replica source that gets a main shard by repeating the update that led to it. It fetches the
// gradient record (arena/gradient_record.hpp) from the node that captured the shard, and repeats the update on the
// previous checkpoint, of which this node has a copy. The piece counts only if it has the digests of the owner's piece.
// If anything is missing or differs, it lets the peer source fetch the whole piece.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
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

  // After so many updates of one shard in a row that gave other bytes than the owner's, none is repeated any more.
  static constexpr std::uint32_t vain_max = 3;

 private:
  class Recomputation;
  enum class End { equal, unequal, damaged, missing };

  Pin base_of(const core::StartFetch& order) const;
  void ended(const core::StartFetch& order, End end, const std::string& why);

  const Dependencies deps_;
  std::map<std::string, std::uint32_t> vain_;  // by shard: updates in a row that gave other bytes
};

}  // namespace ckpt::agent
