// PeerSource is the replica source that fetches a whole piece from another node over the network.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

class FetchSink;

// The pieces that this node is receiving for a restore. It sends them on to other nodes while they arrive. Thread-safe.
class ArrivingPieces {
 public:
  void add(const net::PieceName& name, const std::shared_ptr<FetchSink>& sink);
  // The fetch of the piece has ended. `piece`: the piece if it is whole, else null.
  void remove(const net::PieceName& name, const Pin& piece);
  // Nothing if no such piece is arriving, if its manifest is not here yet, or if its fetch has failed.
  std::optional<net::ServedPiece> find(const net::PieceName& name) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::uint64_t>, std::shared_ptr<FetchSink>> sinks_;
};

class PeerSource : public ReplicaSource {
 public:
  // `pool`, `queue`, `index` and `arriving` outlive the source and the transport.
  PeerSource(WorkerPool& pool, CoreQueue& queue, std::shared_ptr<TransportPort> transport, const PieceIndex& index,
             ArrivingPieces& arriving)
      : pool_(pool), queue_(queue), transport_(std::move(transport)), index_(index), arriving_(arriving) {}

  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;
  void ended(const core::StartFetch& order, const FetchOutcome& outcome) override;

 private:
  WorkerPool& pool_;
  CoreQueue& queue_;
  const std::shared_ptr<TransportPort> transport_;
  const PieceIndex& index_;
  ArrivingPieces& arriving_;
};

// Receives one piece from a peer into a slot. It seals the slot only if every leaf matches its digest.
//
// The transport's thread calls begin(), received() and ended(). The digest threads verify each leaf as soon as all of
// its bytes are there. `done` runs exactly once, on one of these threads, when nothing writes to the slot any more. If
// the fetch has failed, nothing reads it any more, either.
//
// serve() sends verified bytes on to other nodes while further bytes arrive. Such a node may still be reading when the
// piece is whole and `done` has run. So ArrivingPieces then calls keep(), which keeps the piece in its slot.
class FetchSink : public net::Sink, public RunningFetch, public std::enable_shared_from_this<FetchSink> {
 public:
  // If `result` is complete, the piece is sealed in the slot and has this manifest.
  using Done = std::function<void(core::FetchResult result, std::optional<arena::Manifest> manifest)>;

  // `pool` outlives the sink.
  FetchSink(FetchDestination destination, WorkerPool& pool, Done done);

  void cancel() override;  // [any thread]

  // [any thread] The piece, as far as its bytes are verified. Nothing before begin(), and after the fetch has failed.
  std::optional<net::ServedPiece> serve();
  // [any thread] `piece` stays in its slot as long as this object exists.
  void keep(Pin piece);

  std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) override;
  void received(std::size_t offset_bytes, std::size_t size_bytes) override;
  void ended(net::FetchEnd end) override;
  std::size_t backlog() const override;
  bool wanted() const override;

 private:
  void submit(std::size_t first_leaf, std::size_t last_leaf);
  void verify(std::size_t first_leaf, std::size_t last_leaf);
  void finish_if_over();
  void note_verified(std::size_t first_leaf, std::size_t last_leaf);
  std::optional<std::size_t> ready_bytes() const;
  void stop_reading();
  // The slot will not have the whole piece.
  bool has_failed() const { return corrupt_ || cancelled_ || (end_ && *end_ != net::FetchEnd::complete); }

  FetchDestination destination_;
  WorkerPool& pool_;
  const Done done_;
  arena::Manifest manifest_;               // written in begin(), constant afterwards
  std::vector<std::uint32_t> leaf_bytes_;  // received so far, by leaf; transport's thread only
  std::size_t whole_leaves_ = 0;           // transport's thread only

  mutable std::mutex mutex_;
  std::vector<std::byte> encoded_manifest_;  // empty before begin(), constant afterwards
  std::size_t length_bytes_ = 0;             // likewise
  std::vector<bool> verified_;               // by leaf
  std::size_t verified_leaves_ = 0;          // all leaves before this one are verified
  std::size_t readers_ = 0;
  Pin piece_;
  std::size_t verifying_ = 0;
  std::optional<net::FetchEnd> end_;
  bool corrupt_ = false;
  bool cancelled_ = false;
  bool over_ = false;
};

}  // namespace ckpt::agent
