// PeerSource is the replica source that fetches a whole piece from another node over the network.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

class PeerSource : public ReplicaSource {
 public:
  // `pool` and `queue` outlive the source and the transport.
  PeerSource(WorkerPool& pool, CoreQueue& queue, std::shared_ptr<TransportPort> transport)
      : pool_(pool), queue_(queue), transport_(std::move(transport)) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;

 private:
  WorkerPool& pool_;
  CoreQueue& queue_;
  const std::shared_ptr<TransportPort> transport_;
};

// Receives one piece from a peer into a slot. It seals the slot only if every leaf matches its digest.
//
// The transport's thread calls begin(), received() and ended(). The digest threads verify each leaf as soon as all of
// its bytes are there. `done` runs exactly once, on one of these threads, when nothing touches the slot any more.
class FetchSink : public net::Sink, public RunningFetch, public std::enable_shared_from_this<FetchSink> {
 public:
  // If `result` is complete, the piece is sealed in the slot and has this manifest.
  using Done = std::function<void(core::FetchResult result, std::optional<arena::Manifest> manifest)>;

  // `pool` outlives the sink.
  FetchSink(FetchDestination destination, WorkerPool& pool, Done done);

  void cancel() override;  // [any thread]

  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override;
  void received(std::size_t offset_bytes, std::size_t size_bytes) override;
  void ended(net::FetchEnd end) override;
  std::size_t backlog() const override;
  bool wanted() const override;

 private:
  void submit(std::size_t first_leaf, std::size_t last_leaf);
  void verify(std::size_t first_leaf, std::size_t last_leaf);
  void finish_if_over();

  FetchDestination destination_;
  WorkerPool& pool_;
  const Done done_;
  arena::Manifest manifest_;               // written in begin(), constant afterwards
  std::vector<std::uint32_t> leaf_bytes_;  // received so far, by leaf; transport's thread only
  std::size_t whole_leaves_ = 0;           // transport's thread only

  mutable std::mutex mutex_;
  std::size_t verifying_ = 0;
  std::optional<net::FetchEnd> end_;
  bool corrupt_ = false;
  bool cancelled_ = false;
  bool over_ = false;
};

}  // namespace ckpt::agent
