// A replica source is one way in which a piece gets into a slot of this node: from a peer, by decoding, from storage,
// or from GPU to GPU.
//
// How the parts meet. The core picks the piece, where it comes from (a node, storage_node or parity_node) and the slot.
// Fetches makes room for it. It then offers the order to each source in turn, and the first source that takes it
// fetches the piece. Fetches knows no source by name: TransferOrders::use() makes the list. A further source implements
// ReplicaSource and joins that list.
//
// Threads. All functions of both classes belong to the core thread. So do `done` and `damaged`, and neither is called
// within start(). A source works on other threads and comes back through the core queue.
//
// Ownership. The FetchDestination in the request is the only way to the slot. From start() until `done`, the source
// alone touches it. The caller keeps the RunningFetch until `done`.
//
// Deadlines. A source waits for no answer longer than `timeout_ms`, or than a shorter limit of its own. A read from
// storage has the limit of its file system. So every fetch ends by itself.
//
// Failures. `done` comes exactly once. If it says `complete`, the piece is verified and sealed in the slot. Otherwise
// the slot stays unsealed. After a failure no other source is tried here. The core orders the fetch again from the next
// place that has the piece (Worker::pick_source), because only the core knows them all. A source that only saves work
// fetches from the node what it does not have itself, as GPU replication does.
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

// A piece as a node has it.
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

// One fetch, from start() until `done`.
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
