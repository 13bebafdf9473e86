// PeerSource is the replica source that fetches a whole piece from another node over the network.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "agent/pieces/piece_index.hpp"
#include "agent/pieces/worker_pool.hpp"
#include "agent/transfers/replica_source.hpp"
#include "agent/transfers/transport_port.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

class FetchSink;

// What a failed fetch has verified: the first `leaves` leaves of the piece with this manifest.
struct Unfinished {
  arena::Manifest manifest;
  std::size_t leaves = 0;
};

// The pieces that this node has been ordered to fetch from other nodes for a restore. It sends them on while they
// arrive. Thread-safe.
//
// Only nodes behind this one in the piece's chain get such a piece. The order to this node and the request must name
// the same chain. So nodes never wait for each other in a circle, even if some follow an older plan than others: all
// nodes of a circle would have the same chain, and each would be behind the next one.
//
// A piece of which nothing is here yet is *coming* until its first fetch fails: nodes that ask for it may wait. If
// nothing arrives for `quiet_ms`, of any piece, no piece is coming any more.
class ArrivingPieces {
 public:
  static constexpr std::int64_t quiet_ms = 30'000;

  // `now_ms`: the time. Any thread may call it.
  explicit ArrivingPieces(net::PeerId own_node, std::function<std::int64_t()> now_ms = core_now_ms)
      : own_node_(own_node), now_ms_(std::move(now_ms)) {}

  // The piece has been ordered, for the chain with this number.
  void expect(const net::PieceName& name, std::uint64_t chain);
  // The fetch of the piece has begun.
  void add(const net::PieceName& name, const std::shared_ptr<FetchSink>& sink);
  // The fetch of the piece has ended. `piece`: the piece if it is whole, else null.
  void remove(const net::PieceName& name, const Pin& piece);
  // What `asker` gets of the piece. Nothing if the piece has not been ordered, if its fetch has failed, or if the asker
  // is not behind this node in the same chain.
  std::optional<net::ServedPiece> find(const net::PieceName& name, const net::Asker& asker) const;

 private:
  using Key = std::pair<std::string, std::uint64_t>;
  struct Arriving {
    std::uint64_t chain = net::no_chain;
    std::shared_ptr<FetchSink> sink;  // null before the fetch begins
  };

  const net::PeerId own_node_;
  const std::function<std::int64_t()> now_ms_;
  // When bytes of any of the pieces arrived, or a piece was ordered.
  const std::shared_ptr<std::atomic<std::int64_t>> active_at_ms_ = std::make_shared<std::atomic<std::int64_t>>(0);
  mutable std::mutex mutex_;
  std::map<Key, Arriving> arriving_;
  std::set<Key> failed_;  // pieces of the newest checkpoint of which a fetch has failed
};

// If a fetch has failed, the next fetch of the same piece goes on where it ended: PeerSource looks which of the
// verified leaves are still in the slot, and asks for the rest of the piece only.
class PeerSource : public ReplicaSource {
 public:
  // `pool`, `queue`, `index` and `arriving` outlive the source and the transport.
  PeerSource(WorkerPool& pool, CoreQueue& queue, std::shared_ptr<TransportPort> transport, const PieceIndex& index,
             ArrivingPieces& arriving)
      : pool_(pool), queue_(queue), transport_(std::move(transport)), index_(index), arriving_(arriving) {}

  void ordered(const core::StartFetch& order, bool urgent) override;
  std::shared_ptr<RunningFetch> start(const FetchRequest& request) override;
  void ended(const core::StartFetch& order, const FetchOutcome& outcome) override;

 private:
  void remember(const core::PieceInfo& piece, std::optional<Unfinished> unfinished);

  WorkerPool& pool_;
  CoreQueue& queue_;
  const std::shared_ptr<TransportPort> transport_;
  const PieceIndex& index_;
  ArrivingPieces& arriving_;
  std::map<std::uint64_t, std::shared_ptr<FetchSink>> running_;  // by fetch
  // What failed fetches have verified of pieces, at most unfinished_max. The bytes may be in the piece's slot yet.
  std::map<std::pair<std::string, std::uint64_t>, Unfinished> unfinished_;
};

// Receives one piece from a peer into a slot. It seals the slot only if every leaf matches its digest.
//
// The transport's thread calls begin(), received() and ended(). The digest threads verify each leaf as soon as all of
// its bytes are there. `done` runs exactly once, on one of these threads, when nothing writes to the slot any more. If
// the fetch has failed, nothing reads it any more, either.
//
// keep_verified() lets a fetch go on where an earlier one has failed.
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

  // Keeps the leaves of `before` that are in the slot, from the first one on, and returns how many bytes that are. Then
  // fetch only the bytes behind them. Call it before the fetch begins, if at all, and only if `before` has the manifest
  // of the same piece.
  std::size_t keep_verified(const Unfinished& before);
  // [any thread] Once `done` has run: what the next fetch may keep. Nothing if no leaf was verified.
  std::optional<Unfinished> unfinished() const;
  // How many of the piece's bytes keep_verified() has kept.
  std::size_t kept_bytes() const { return kept_bytes_; }

  // [any thread] The piece, as far as its bytes are verified. Nothing before begin(), and after the fetch has failed.
  std::optional<net::ServedPiece> serve();
  // [any thread] Nothing has come yet, and the fetch has not failed.
  bool may_begin() const;
  // [any thread] `piece` stays in its slot as long as this object exists.
  void keep(Pin piece);
  // `note` runs on the transport's thread whenever bytes arrive. Call this before the fetch begins.
  void note_arrivals(std::function<void()> note) { note_arrival_ = std::move(note); }

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
  std::function<void()> note_arrival_;            // may be empty; constant once the fetch has begun
  std::size_t kept_leaves_ = 0, kept_bytes_ = 0;  // constant once the fetch has begun
  arena::Manifest manifest_;                      // written in begin(), constant afterwards
  std::vector<std::uint32_t> leaf_bytes_;         // received so far, by leaf; transport's thread only
  std::size_t whole_leaves_ = 0;                  // transport's thread only

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
