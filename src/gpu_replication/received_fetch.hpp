// ReceivedFetch fetches a piece that also arrives by GPU replication (receive_buffer.hpp). First it fetches the
// manifest from the node that has the piece. Then it copies the bytes that have arrived into the slot, and verifies
// them there. If bytes are wrong or did not arrive in time, it fetches them from the node.
//
// Thread-safe. `done` runs exactly once, when nothing touches the slot any more: on a thread of the transport, on a
// digest thread, or within start() if the transport fails at once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/fetch_destination.hpp"
#include "agent/transfers/transport_port.hpp"
#include "base/clock.hpp"
#include "core/events.hpp"
#include "gpu_replication/receive_buffer.hpp"

namespace ckpt::agent {

class ReceivedFetch : public std::enable_shared_from_this<ReceivedFetch> {
 public:
  // How the fetch ended. If `result` is complete, the slot is sealed and has the piece with this manifest.
  // `gpu_received_bytes` of the piece came by GPU replication.
  struct Outcome {
    core::FetchResult result = core::FetchResult::failed;
    std::optional<arena::Manifest> manifest;
    std::uint64_t gpu_received_bytes = 0;
  };
  using Done = std::function<void(Outcome outcome)>;

  struct Order {
    core::NodeId source = 0;
    bool urgent = false;  // fetch from the node without waiting for an idle network
    // Limit for each of three steps: to fetch the manifest, to wait for all that arrives, to fetch the rest.
    std::int64_t timeout_ms = 0;
    std::int64_t receive_timeout_ms = 0;  // longest wait during which nothing arrives
  };
  // `place`: the place in the receive buffer at which the piece arrives. `pool` outlives the object.
  ReceivedFetch(FetchDestination destination, Order order, std::shared_ptr<const arena::ReceiveBuffer> receive_buffer,
                std::size_t place, WorkerPool& pool, std::shared_ptr<TransportPort> transport, Done done);

  void start();
  // Call this when bytes may have arrived. Call it regularly, too, because only here the object notices that a deadline
  // has passed.
  void look();
  // Nothing more will arrive: fetches the missing bytes from the node at once.
  void stop_waiting();
  // Ends the fetch early and leaves the slot unsealed.
  void cancel();

 private:
  class ManifestSink;
  class RestSink;

  void begin(const std::optional<std::vector<std::byte>>& encoded_manifest);
  net::PieceName name() const { return {piece_.shard, piece_.checkpoint.word()}; }
  std::size_t leaves_received() const;
  void take(std::size_t first_leaf, std::size_t last_leaf);
  void fetch_rest();
  void check_rest(std::size_t first_leaf, std::size_t last_leaf);
  bool is_cancelled() const;
  void end(core::FetchResult result);

  FetchDestination destination_;
  const core::PieceInfo piece_;
  const Order order_;
  const std::shared_ptr<const arena::ReceiveBuffer> receive_buffer_;
  const std::size_t place_;
  WorkerPool& pool_;
  const std::shared_ptr<TransportPort> transport_;
  const Done done_;
  arena::Manifest manifest_;  // constant once leaves are being taken

  mutable std::mutex mutex_;  // for all below. In stage `fetching` one thread uses them, except is_cancelled_
  enum class Stage { asking, taking, fetching } stage_ = Stage::asking;
  bool is_busy_ = false;  // a digest thread is taking leaves
  bool is_cancelled_ = false;
  bool may_wait_ = true;                            // more may arrive; false after stop_waiting()
  std::size_t taken_ = 0;                           // number of leaves taken, good or bad
  std::size_t first_bad_ = 0, end_bad_ = 0;         // this range contains all bad leaves
  std::uint64_t gpu_received_bytes_ = 0;            // bytes of the good leaves
  Deadline deadline_ = Deadline::in_ms(0);          // for all bytes that are to arrive
  Deadline arrival_deadline_ = Deadline::in_ms(0);  // for the next bytes to arrive
};

}  // namespace ckpt::agent
