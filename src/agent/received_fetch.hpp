// A fetch of a piece that comes to this node from GPU to GPU as well (arena/receive_buffer.hpp): its manifest comes
// from the node that has it, and so does whatever has not arrived in time or did not arrive as the manifest says. What
// has arrived is copied into the slot and verified there.
//
// Thread-safe. `done` runs exactly once, on the transport's or a digest thread, when nothing touches the slot any more;
// within start() where the transport fails at once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "agent/transport_port.hpp"
#include "agent/worker_pool.hpp"
#include "arena/receive_buffer.hpp"
#include "arena/segment.hpp"
#include "base/clock.hpp"
#include "protocol/events.hpp"

namespace ckpt::agent {

class ReceivedFetch : public std::enable_shared_from_this<ReceivedFetch> {
 public:
  // complete: the piece, with this manifest, is sealed in the slot. `gpu_received_bytes` did not come from the node.
  struct Outcome {
    protocol::FetchResult result = protocol::FetchResult::failed;
    std::optional<arena::Manifest> manifest;
    std::uint64_t gpu_received_bytes = 0;
  };
  using Done = std::function<void(Outcome outcome)>;

  struct Order {
    protocol::PieceInfo piece;
    protocol::NodeId source = 0;
    bool urgent = false;
    std::int64_t timeout_ms = 0;          // of the manifest, of all that arrives, and of what does not, each
    std::int64_t receive_timeout_ms = 0;  // without anything that arrives
  };
  // `pool` outlives the object.
  ReceivedFetch(std::shared_ptr<arena::Segment> segment, std::uint8_t slot, Order order,
                std::shared_ptr<const arena::ReceiveBuffer> receive_buffer, std::size_t place, WorkerPool& pool,
                std::shared_ptr<TransportPort> transport, Done done);

  void start();
  // To be called when something may have arrived, and now and then besides, for its deadline.
  void look();
  // Nothing arrives any more: what has not, comes from the node at once.
  void stop_waiting();
  // The slot stays unsealed, whatever still arrives.
  void cancel();

 private:
  class ManifestSink;
  class RestSink;

  void begin(const std::optional<std::vector<std::byte>>& manifest);
  std::size_t leaves_received() const;
  void take(std::size_t first_leaf, std::size_t last_leaf);
  void fetch_rest();
  void check_rest(std::size_t first_leaf, std::size_t last_leaf);
  bool is_cancelled() const;
  void end(protocol::FetchResult result);

  const std::shared_ptr<arena::Segment> segment_;
  arena::WritableSlot slot_;
  const Order order_;
  const std::shared_ptr<const arena::ReceiveBuffer> receive_buffer_;
  const std::size_t place_;
  WorkerPool& pool_;
  const std::shared_ptr<TransportPort> transport_;
  const Done done_;
  arena::Manifest manifest_;  // constant once there is something to take

  mutable std::mutex mutex_;  // for all below, until the rest is fetched
  enum class Stage { asking, taking, fetching } stage_ = Stage::asking;
  bool is_busy_ = false;  // leaves are being taken
  bool is_cancelled_ = false;
  bool may_land_ = true;
  std::size_t taken_ = 0;                           // leaves, good or not
  std::size_t first_bad_ = 0, end_bad_ = 0;         // all that are not are in this range
  std::uint64_t gpu_received_bytes_ = 0;            // of the good ones
  Deadline deadline_ = Deadline::in_ms(0);          // of all that arrives
  Deadline arrival_deadline_ = Deadline::in_ms(0);  // of what arrives next
};

}  // namespace ckpt::agent
