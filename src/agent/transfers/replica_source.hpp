// ReplicaSource is the interface of each way in which a piece gets into a slot of this node: from a peer, by decoding,
// from storage, or from GPU to GPU.
//
// Order. The protocol's core picks the piece, the slot, and where the piece comes from (a node, storage_node or
// parity_node). Fetches tells all sources, and makes room for the piece. Then it offers the order to one source after
// the other. The first source that accepts the order fetches the piece. TransferOrders::use() makes the list of
// sources; add a new source there.
//
// Threads. Only the agent's core thread calls the functions of a source, and the callbacks `done` and `damaged` of a
// request. A source must not call them within start(). It may work on threads of its own, which post the results to the
// CoreQueue.
//
// Ownership. The FetchDestination in the request is the only way to the slot. From start() until `done`, only the
// source touches the slot. The caller keeps the RunningFetch until `done`.
//
// Deadlines. A source waits for an answer of another node for at most `timeout_ms`. Reads from storage have the time
// limit of the storage's file system. So every fetch ends by itself.
//
// Failures. A source calls `done` exactly once. If the result is `complete`, the piece is verified and sealed in the
// slot. Otherwise the slot stays unsealed. Fetches then tries no other source. The core orders the piece again from
// another place, because only the core knows all places (Worker::pick_source). GPU replication is an exception: if the
// piece does not come from GPU to GPU, GpuSource itself fetches it from the node's memory.
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
  std::uint64_t network_bytes = 0;          // bytes received from other nodes, without those from GPU to GPU
  std::uint64_t coded_bytes = 0;            // bytes encoded or decoded
  // Bytes received from GPU to GPU, or bytes of parity that a GPU has made. Nothing if the fetch did not wait for GPU
  // replication.
  std::optional<std::uint64_t> gpu_received_bytes;
};

struct FetchRequest {
  core::StartFetch order;
  bool urgent = false;  // a rank waits for it: do not wait for an idle network
  std::int64_t timeout_ms = 0;
  FetchDestination destination;
  std::function<void(FetchOutcome outcome)> done;
  // The source calls this, before `done`, for each piece that arrived damaged. The piece belongs to the order's
  // checkpoint. `is_wrong`: the piece matches its digests, but is not the parity of its group's shards.
  std::function<void(const PieceRef& piece, bool is_wrong)> damaged;
};

// A fetch under way, from start() until `done`.
class RunningFetch {
 public:
  virtual ~RunningFetch() = default;
  // Ends the fetch early and leaves the slot unsealed. `done` still comes.
  virtual void cancel() = 0;
  // Called when bytes may have arrived from GPU to GPU, or when it is known that no more will.
  virtual void look() {}
  // Called when it is known that no more bytes will arrive from GPU to GPU.
  virtual void stop_waiting() {}
};

class ReplicaSource {
 public:
  virtual ~ReplicaSource() = default;
  // Called for every fetch that is ordered, before there is room for it. `urgent` as in FetchRequest.
  virtual void ordered(const core::StartFetch& /*order*/, bool /*urgent*/) {}
  // Accepts the order and starts the fetch. Returns null if the order is not for this source. Then the next source is
  // asked.
  virtual std::shared_ptr<RunningFetch> start(const FetchRequest& request) = 0;
  // Called for every fetch that has ended, also for fetches of other sources and for those that found no room.
  virtual void ended(const core::StartFetch& /*order*/, const FetchOutcome& /*outcome*/) {}
};

// Whether `source` is the number of a real node. False for storage_node and parity_node.
inline bool is_node(core::NodeId source) { return source < core::parity_node; }

}  // namespace ckpt::agent
