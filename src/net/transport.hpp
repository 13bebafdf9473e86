// How agents talk: small messages, and pieces fetched straight into the receiver's memory.
//
// One thread, owned by the transport, drives the streams or the UCX worker; every callback below runs on it and must
// not block, take long or call back into the transport except through the functions marked [any thread]. Everything is
// best effort with a deadline: a message may be lost or overtake another (the protocol repeats its state), a fetch ends
// in exactly one of FetchEnd. Peers are proven: before a connection both sides show at the listener (listener.hpp) that
// they have the job's token, and it starts with a hello that proves that it belongs to that handshake and carries both
// nodes' identities. Whoever cannot, or answers as somebody else, is dropped (a released port may belong to an
// unauthenticated peer).
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

// Names a piece on the wire; the transport does not interpret it.
struct PieceName {
  std::string shard;
  std::uint64_t checkpoint = 0;
  bool operator==(const PieceName&) const = default;
};

// Which part of a piece: the bytes [first_byte, first_byte + size_bytes), cut off at its end (there may be none), and
// whether its manifest comes before them. What is urgent does not wait for an idle network: a rank waits for it.
struct FetchPart {
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = UINT64_MAX;
  bool manifest = true;
  bool urgent = false;
};

// A piece that this node serves. `pin` keeps both ranges alive and unchanged until the transfer's callbacks ran.
struct ServedPiece {
  std::span<const std::byte> manifest;  // small: travels with the answer's header where it is wanted
  std::span<const std::byte> data;
  std::shared_ptr<void> pin;
};

enum class FetchEnd { complete, refused, not_there, timed_out, peer_failed };

// How a peer is found when one connects at its listener.
enum class Reach {
  unknown,
  answers,               // its agent does
  silent,                // its machine does, and its agent does not: it is stopped, or far too slow
  ended,                 // its machine does, and nobody listens
  wrong_token,           // its agent does, and one side's token of the job is wrong
  unauthenticated_peer,  // an agent of another job or release does
  unreachable            // nothing comes back: the machine is down, or the network is cut
};

// Where what is fetched goes. All calls on the transport's thread, in this order: begin once, arrived per chunk, ended
// exactly once (also without begin). After `ended` the transport touches none of the memory any more; a slot with an
// unfinished transfer is in use until then.
class Sink {
 public:
  virtual ~Sink() = default;
  // The memory of `data_bytes` bytes to receive the part's bytes into, or nothing to refuse. `data_bytes` is what the
  // piece has of them. `manifest` is valid during the call, and empty when it was not asked for.
  virtual std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) = 0;
  // [offset, offset + size) of that memory has arrived. Chunks may arrive in any order; each byte arrives once.
  virtual void received(std::size_t offset_bytes, std::size_t size_bytes) = 0;
  // How many chunks have arrived and are still being worked on. The source sends no further one before there are fewer
  // than sub_buffers.
  virtual std::size_t backlog() const { return 0; }
  // Once false the fetch ends, as refused.
  virtual bool wanted() const { return true; }
  virtual void ended(FetchEnd end) = 0;
};

struct TransportOptions {
  std::string job;    // both sides must agree
  std::string token;  // the job's secret; both sides must have it, and it is never sent
  PeerId node = 0;    // this node
  std::uint64_t node_instance =
      0;  // this incarnation of the node's arena: tells a replacement from the node it replaces
  std::string transports = "tcp";  // "tcp"; "shm": tcp, bulk by reading a local peer's memory; else UCX_TLS, e.g. "all"
  std::string interface;           // network device ("eth0", "lo"), for UCX a list as UCX names them; empty: any
  std::uint16_t port = 0;          // of the listener; UCX takes some of the next ones (ucx.hpp); 0: any
  std::size_t chunk_bytes = 2u << 20;        // size of one transfer: still in a cache when it is verified
  std::size_t chunks_in_flight = 4;          // per fetch, until the receiver has them
  std::size_t sub_buffers = 4;               // per fetch: chunks that have arrived and are being worked on
  std::size_t message_bytes_max = 8u << 20;  // larger messages are refused on both sides
  std::size_t queue_limit = 4096;           // requests waiting for the transport's thread; beyond: send() returns false
  std::int64_t progress_timeout_ms = 3000;  // a fetch or send without any progress for so long has failed
};

class Transport {
 public:
  using OnMessage = std::function<void(PeerId from, std::span<const std::byte> message)>;
  using OnServe = std::function<std::optional<ServedPiece>(PeerId to, const PieceName& piece)>;
  using OnPeerFailed = std::function<void(PeerId peer)>;
  struct Handlers {
    OnMessage message;
    OnServe serve;
    OnPeerFailed peer_failed;     // the connection broke; a hint only, heartbeats decide who is alive
    ChunkPacer* pacer = nullptr;  // outlives the transport; null: chunks leave as soon as they can
    // A sentence for people, on a thread of its own and seldom: who was turned away, which peer does not fit.
    std::function<void(const std::string&)> remark = {};
  };

  // Throws Failure (CKPT_ERR_SYSTEM) when it cannot start, e.g. for an unknown transport or interface, or when the
  // port is taken, and CKPT_ERR_INVALID without a token.
  static std::unique_ptr<Transport> create(const TransportOptions& options, Handlers handlers);

  // Ends all transfers (their sinks see `ended`), joins the thread; bounded by progress_timeout_ms.
  virtual ~Transport() = default;

  // Opaque bytes by which peers reach this node, for the coordination store: where its listener is.
  virtual std::string address() const = 0;

  // [any thread] Tells or replaces the address of a peer. An unchanged (address, instance) is a no-op; a change closes
  // the old endpoint first. The connection is made when it is needed, and made again after it broke.
  virtual void set_peer(PeerId peer, std::uint64_t node_instance, const std::string& address) = 0;

  // [any thread] Queues a message; false when the queue is full or the peer unknown.
  virtual bool send(PeerId to, std::vector<std::byte> message) = 0;

  // [any thread] Fetches a part of a piece into `sink`. At most `timeout_ms` since the source last said that it waits
  // with the next chunk, and in all if it never does; receives that are under way then
  // get another quarter of a second before the connection, with all that runs over it, is closed to end them.
  virtual void fetch(PeerId from, PieceName piece, FetchPart part, std::shared_ptr<Sink> sink,
                     std::int64_t timeout_ms) = 0;
  // The whole piece with its manifest.
  void fetch(PeerId from, PieceName piece, std::shared_ptr<Sink> sink, std::int64_t timeout_ms) {
    fetch(from, std::move(piece), FetchPart{}, std::move(sink), timeout_ms);
  }

  // [any thread] Connects to the listener at `address`, and says how that went: once, on a thread of the transport's,
  // within progress_timeout_ms; never, where the transport ends before.
  virtual void probe(PeerId, std::uint64_t /*node_instance*/, const std::string& /*address*/,
                     std::function<void(Reach)> done) {
    done(Reach::unknown);
  }

  // [any thread] What was chosen, for people: "tcp over lo".
  virtual std::string description() const = 0;

  // [any thread] Who was turned away so far.
  virtual UnauthenticatedPeers unauthenticated_peers() const { return {}; }
};

}  // namespace ckpt::net
