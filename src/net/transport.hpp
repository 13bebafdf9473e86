// Transport moves data between agents: small messages, and pieces, which arrive straight in the receiver's memory.
//
// One thread, owned by the transport, drives the TCP streams or UCX. All callbacks run on it. A callback must not block
// or take long. It may call only those functions of the transport that are marked [any thread].
//
// A message may be lost, or overtake another one. Senders repeat their state, so this does no harm. A fetch has a
// deadline and ends in exactly one of the ways of FetchEnd.
//
// Both sides of a connection first prove to each other that they have the job's token (listener.hpp). The hello on the
// connection proves that the connection belongs to that handshake, and names both nodes. A peer that cannot prove this,
// or that answers as another node, is dropped: somebody else may listen at a port that a node gave up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "net/unauthenticated_peers.hpp"

namespace ckpt::net {

using PeerId = std::uint32_t;

class ChunkPacer;

// Names a piece. The transport does not interpret the name.
struct PieceName {
  std::string shard;
  std::uint64_t checkpoint = 0;
  bool operator==(const PieceName&) const = default;
};

// The bytes of a piece that a fetch wants: size_bytes from first_byte on, or fewer if the piece ends before. The
// manifest may come first. An urgent fetch does not wait until training leaves the network idle, because a rank waits
// for it.
struct FetchPart {
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = UINT64_MAX;
  bool manifest = true;
  bool urgent = false;
};

// A piece that this node sends to peers. `pin` keeps both ranges alive and unchanged until the transfer's callbacks
// have run.
struct ServedPiece {
  std::span<const std::byte> manifest;  // small: sent with the answer's header if it is wanted
  std::span<const std::byte> data;
  std::shared_ptr<void> pin;
};

enum class FetchEnd { complete, refused, not_there, timed_out, peer_failed };

// What a probe found at a peer's listener.
enum class Reach {
  unknown,
  answers,               // its agent answers
  silent,                // its machine answers and its agent does not: it is stopped, or far too slow
  ended,                 // its machine answers, and nobody listens
  wrong_token,           // its agent answers, and one side's token of the job is wrong
  unauthenticated_peer,  // an agent of another job or release answers
  unreachable            // nothing comes back: the machine is down, or the network is cut
};

// The receiver of a fetch. The transport's thread calls begin() at most once, then received() for each chunk. It calls
// ended() exactly once, even if it never called begin(). The transport may write to the slot until it calls ended(),
// and not afterwards.
class Sink {
 public:
  virtual ~Sink() = default;
  // Returns the memory that receives the part's bytes, `data_bytes` long, or nothing to refuse. `data_bytes` is how
  // many bytes the piece has in the part. `manifest` is valid during the call, and empty if it was not asked for.
  virtual std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) = 0;
  // [offset, offset + size) of that memory has arrived. Chunks may arrive in any order; each byte arrives once.
  virtual void received(std::size_t offset_bytes, std::size_t size_bytes) = 0;
  // How many chunks have arrived and are still being worked on. The source sends the next chunk only when there are
  // fewer than sub_buffers.
  virtual std::size_t backlog() const { return 0; }
  // Once false, the fetch ends as refused.
  virtual bool wanted() const { return true; }
  virtual void ended(FetchEnd end) = 0;
};

struct TransportOptions {
  std::string job;    // both sides must agree
  std::string token;  // the job's secret; both sides must have it, and it is never sent
  PeerId node = 0;    // this node
  // The id of the node's arena. It differs when a node comes back with a new arena.
  std::uint64_t node_instance = 0;
  // "tcp"; "shm": tcp, but bulk data is read from a local peer's memory; else UCX_TLS, e.g. "all".
  std::string transports = "tcp";
  std::string interface;               // network device ("eth0", "lo"); for UCX a list as UCX names them; empty: any
  std::uint16_t port = 0;              // the listener's; UCX takes some of the next ones (ucx.hpp); 0: any
  std::size_t chunk_bytes = 2u << 20;  // size of one transfer; still in a cache when it is verified
  std::size_t chunks_in_flight = 4;    // per fetch, until the receiver has them
  std::size_t sub_buffers = 4;         // per fetch: chunks that have arrived and are being worked on
  std::size_t message_bytes_max = 8u << 20;  // larger messages are refused on both sides
  std::size_t queue_limit = 4096;            // messages neither sent nor dropped; beyond: send() returns false
  std::int64_t progress_timeout_ms = 3000;   // a fetch or send fails after so long without progress
};

class Transport {
 public:
  using OnMessage = std::function<void(PeerId from, std::span<const std::byte> message)>;
  using OnServe = std::function<std::optional<ServedPiece>(PeerId to, const PieceName& piece)>;
  using OnPeerFailed = std::function<void(PeerId peer)>;
  struct Handlers {
    OnMessage message;
    OnServe serve;
    OnPeerFailed peer_failed;     // the connection broke; only a hint: heartbeats decide who is alive
    ChunkPacer* pacer = nullptr;  // outlives the transport; null: chunks leave as soon as they can
    // A sentence for people: which peers were rejected, and which peer does not fit. Called seldom, on a thread of its
    // own.
    std::function<void(const std::string&)> remark = {};
  };

  // Throws Failure (CKPT_ERR_SYSTEM) if it cannot start, e.g. for an unknown transport or interface, or a port that is
  // taken; and CKPT_ERR_INVALID without a token.
  static std::unique_ptr<Transport> create(const TransportOptions& options, Handlers handlers);

  // Ends all transfers (their sinks get ended()) and joins the thread. Takes at most progress_timeout_ms.
  virtual ~Transport() = default;

  // Opaque bytes for the coordination store, by which peers reach this node's listener.
  virtual std::string address() const = 0;

  // [any thread] Sets or replaces the address of a peer. An unchanged (address, instance) is a no-op. A change closes
  // the old endpoint first. The connection is made when it is needed, and again after it broke.
  virtual void set_peer(PeerId peer, std::uint64_t node_instance, const std::string& address) = 0;

  // [any thread] Queues a message. Returns false if the queue is full or the peer is unknown.
  virtual bool send(PeerId to, std::vector<std::byte> message) = 0;

  // [any thread] Fetches a part of a piece into `sink`. `timeout_ms` counts from the last time the source said that the
  // next chunk waits, or from the start if it never did. Receives under way then get another quarter of a second. After
  // that the connection is closed to end them, with everything else that runs over it.
  virtual void fetch(PeerId from, PieceName piece, FetchPart part, std::shared_ptr<Sink> sink,
                     std::int64_t timeout_ms) = 0;
  // Fetches the whole piece with its manifest.
  void fetch(PeerId from, PieceName piece, std::shared_ptr<Sink> sink, std::int64_t timeout_ms) {
    fetch(from, std::move(piece), FetchPart{}, std::move(sink), timeout_ms);
  }

  // [any thread] Connects to the listener at `address` and reports the result once, on one of the transport's threads,
  // within progress_timeout_ms. If the transport ends first, it reports nothing.
  virtual void probe(PeerId, std::uint64_t /*node_instance*/, const std::string& /*address*/,
                     std::function<void(Reach)> done) {
    done(Reach::unknown);
  }

  // [any thread] The transport in use, for people: "tcp over lo".
  virtual std::string description() const = 0;

  // [any thread] The peers rejected so far.
  virtual UnauthenticatedPeers unauthenticated_peers() const { return {}; }
};

}  // namespace ckpt::net
