// ReplicaSource is the interface of each way in which a piece gets into a slot of this node: from a peer, by decoding,
// from storage, or from GPU to GPU.
//
// Order. The protocol's core picks the piece, the slot, and where the piece comes from (a node, storage_node or
// parity_node). Fetches makes room for it. Then Fetches offers it to one source after the other, and the first that
// takes it fetches the piece. TransferOrders::use() makes the list of sources; a new source joins that list.
//
// Threads. Only the agent's core thread calls these functions, `done` and `damaged`. Neither callback comes within
// start(). A source may work on threads of its own. They post its results to the CoreQueue.
//
// Ownership. The FetchDestination in the request is the only way to the slot. From start() until `done`, only the
// source touches it. The caller keeps the RunningFetch until `done`.
//
// Deadlines. A source waits for an answer for at most `timeout_ms`. A read from storage has the limit of its file
// system. So every fetch ends by itself.
//
// Failures. `done` comes exactly once. If it says `complete`, the piece is verified and sealed in the slot. Otherwise
// the slot stays unsealed, and no other source is tried. The core then orders the fetch again from another place,
// because only the core knows all places (Worker::pick_source). GPU replication is an exception: if the piece does not
// come from GPU to GPU, that source fetches it from the node itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/transfers/fetch_destination.hpp"
#include "arena/manifest.hpp"
#include "core/events.hpp"

namespace ckpt::agent {

// Names a piece on a node.
struct PieceRef {
  core::NodeId node = 0;
  std::string shard;
  bool operator==(const PieceRef&) const = default;
};

struct FetchOutcome {
  core::FetchResult result = core::FetchResult::failed;
  std::optional<arena::Manifest> manifest;  // of the sealed piece, if complete
  std::string trouble;                      // why it failed, for people; may be empty
  std::uint64_t network_bytes = 0;          // that came from other nodes, without what came from GPU to GPU
  std::uint64_t coded_bytes = 0;            // that were encoded or decoded
  // Bytes that came from GPU to GPU. Nothing if the fetch did not wait for GPU replication.
  std::optional<std::uint64_t> gpu_received_bytes;
};

struct FetchRequest {
  core::StartFetch order;
  bool urgent = false;  // a rank waits for it: do not wait for an idle network
  std::int64_t timeout_ms = 0;
  FetchDestination destination;
  std::function<void(FetchOutcome outcome)> done;
  // This piece of the order's checkpoint arrived damaged. With `is_wrong` it matches its digests but does not fit its
  // parity group. Comes before `done`.
  std::function<void(const PieceRef& piece, bool is_wrong)> damaged;
};

// A fetch under way, from start() until `done`.
class RunningFetch {
 public:
  virtual ~RunningFetch() = default;
  // The slot stays unsealed, whatever else arrives. `done` still comes.
  virtual void cancel() = 0;
  // Bytes may have arrived without the source's doing, or no more will.
  virtual void look() {}
};

class ReplicaSource {
 public:
  virtual ~ReplicaSource() = default;
  // Starts the fetch. Returns null if the order is not for this source: then the next one is asked.
  virtual std::shared_ptr<RunningFetch> start(const FetchRequest& request) = 0;
  // Every source hears of the end of every fetch, also of one that found no room.
  virtual void ended(const core::StartFetch& /*order*/, const FetchOutcome& /*outcome*/) {}
};

// False for storage_node and parity_node.
inline bool is_node(core::NodeId source) { return source < core::parity_node; }

}  // namespace ckpt::agent
