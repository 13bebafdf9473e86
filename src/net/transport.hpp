// Transport moves data between agents: small messages, and pieces, which arrive straight in the receiver's memory.
//
// One thread, owned by the transport, drives the TCP streams or UCX. Callbacks run on this thread, unless their comment
// says otherwise. A callback must not block or take long. It may call only those functions of the transport that are
// marked [any thread].
//
// A message may be lost, or overtake another one. This does no harm, because agents repeat their state. A fetch has a
// deadline. It ends once, and FetchEnd says how.
//
// The two nodes of a connection first prove to each other that they have the job's token (listener.hpp). The hello on
// the connection proves that the connection belongs to that handshake, and names both nodes. The transport drops a peer
// that cannot prove this, or that is another node than the one dialed: another process may listen at a port that a
// node has given up.
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

// Names a piece: its shard and its checkpoint. The transport does not interpret the two.
struct PieceName {
  std::string shard;
  std::uint64_t checkpoint = 0;
  bool operator==(const PieceName&) const = default;
};

// The number of no chain (see FetchPart::chain).
inline constexpr std::uint64_t no_chain = UINT64_MAX;

// The bytes of a piece that a fetch wants: size_bytes from first_byte on, or fewer if the piece ends before.
struct FetchPart {
  std::uint64_t first_byte = 0;
  std::uint64_t size_bytes = UINT64_MAX;
  bool manifest = true;  // true: the source sends the piece's manifest before the bytes
  bool urgent = false;   // a rank waits for the piece, so the source sends even while training uses the network
  // The number of the chain in which this node gets the piece and passes it on. The source learns it. The transport
  // does not interpret it.
  std::uint64_t chain = no_chain;
};

// The node that asks for a piece.
struct Asker {
  PeerId node = 0;
  std::uint64_t chain = no_chain;  // FetchPart::chain of its fetch
};

// A piece that this node sends to peers. `pin` keeps the memory of both ranges valid and unchanged. The transport holds
// it until all sends have ended.
struct ServedPiece {
  std::span<const std::byte> manifest;  // sent with the answer if the asker wants it
  std::span<const std::byte> data;
  std::shared_ptr<void> pin;
  // Only set for a piece that this node still receives. Returns how many of its bytes, from the first one on, may be
  // sent now, never fewer than before. Returns nothing if no more bytes will come.
  std::function<std::optional<std::size_t>()> ready_bytes = {};
  // True: nothing of the piece is here yet, but this node is going to receive it. Then all other members are empty. Who
  // asks for the piece up to its end in order to restore it waits as long as this is said, so say it for a limited time
  // only.
  bool is_coming = false;
};

enum class FetchEnd { complete, refused, not_there, timed_out, peer_failed };

// What a probe found at a peer's listener.
enum class Reach {
  unknown,
  answers,               // its agent answers
  silent,                // its machine answers, but its agent does not: the agent is stopped or far too slow
  ended,                 // its machine answers, but no process listens there
  wrong_token,           // its agent answers, but the two nodes do not have the same token
  unauthenticated_peer,  // an agent of another job or release answers
  unreachable            // nothing comes back: the machine is down, or the network is cut
};

// The receiver of a fetch. The transport's thread calls begin() at most once, then received() for each chunk. It calls
// ended() exactly once, even if it never called begin(). The transport writes to the memory that begin() returned only
// until it calls ended().
class Sink {
 public:
  virtual ~Sink() = default;
  // Called when the source has answered. Returns `data_bytes` bytes of memory for the part's bytes, or nothing to
  // refuse them. `data_bytes`: how many bytes the part has, cut where the piece ends. `manifest` is valid only during
  // the call. It is empty if the fetch did not ask for it.
  virtual std::optional<std::span<std::byte>> begin(std::span<const std::byte> manifest, std::size_t data_bytes) = 0;
  // The bytes [offset_bytes, offset_bytes + size_bytes) of that memory have arrived. Chunks may arrive in any order;
  // each byte arrives once.
  virtual void received(std::size_t offset_bytes, std::size_t size_bytes) = 0;
  // How many chunks have arrived and are still being verified. If there are TransportOptions::sub_buffers or more (or
  // as many bytes, if the source sends smaller chunks), the source waits before it sends the next chunk.
  virtual std::size_t backlog() const { return 0; }
  // Returns whether the receiver still wants the bytes. If not, the fetch ends with FetchEnd::refused.
  virtual bool wanted() const { return true; }
  virtual void ended(FetchEnd end) = 0;
};

struct TransportOptions {
  std::string job;    // the job's name; both sides must have the same
  std::string token;  // the job's secret; both sides must have it, and it is never sent
  PeerId node = 0;    // this node
  // The id of the node's arena. It differs when a node comes back with a new arena.
  std::uint64_t node_instance = 0;
  // "tcp"; "shm", which is tcp, but reads chunks from the memory of a peer on the same machine; or a list as for
  // UCX_TLS, e.g. "all".
  std::string transports = "tcp";
  std::string interface;               // network device ("eth0", "lo"); for UCX a list as UCX names them; empty: any
  std::uint16_t port = 0;              // port of the listener; 0: any. UCX uses some of the next ports, too (ucx.hpp)
  std::size_t chunk_bytes = 2u << 20;  // largest chunk; small enough to be in a CPU cache when it is verified
  // Most chunks of a fetch that are sent and not yet acknowledged. Chunks for a node that restores are smaller, so that
  // there are more of them, but no more bytes; all its fetches from one source share the limit.
  std::size_t chunks_in_flight = 4;
  std::size_t sub_buffers = 4;  // most chunks of a fetch that have arrived and are not yet verified; more if smaller
  std::size_t message_bytes_max = 8u << 20;  // both sides refuse larger messages
  std::size_t queue_limit = 4096;           // most messages that wait or are being sent; above it, send() returns false
  std::int64_t progress_timeout_ms = 3000;  // a fetch or send fails after so long without progress
};

class Transport {
 public:
  using OnMessage = std::function<void(PeerId from, std::span<const std::byte> message)>;
  using OnServe = std::function<std::optional<ServedPiece>(const Asker& asker, const PieceName& piece)>;
  using OnPeerFailed = std::function<void(PeerId peer)>;
  struct Handlers {
    OnMessage message;
    OnServe serve;
    OnPeerFailed peer_failed;     // called if a connection broke. Only a hint: heartbeats decide which nodes are alive
    ChunkPacer* pacer = nullptr;  // must outlive the transport; null: chunks leave as soon as they can
    // Takes a sentence for people: which peers were rejected, or which peer has other options. Called seldom, on the
    // listener's thread.
    std::function<void(const std::string&)> remark = {};
  };

  // Starts a transport. Throws Failure: CKPT_ERR_INVALID if the token is empty; CKPT_ERR_SYSTEM if the transport cannot
  // start, e.g. because options.transports or the interface is unknown, or the port is in use.
  static std::unique_ptr<Transport> create(const TransportOptions& options, Handlers handlers);

  // Ends all transfers (their sinks get ended()) and joins the thread. Takes at most progress_timeout_ms.
  virtual ~Transport() = default;

  // Returns the address of this node's listener, which peers pass to their set_peer(). Only transports need to
  // understand the bytes.
  virtual std::string address() const = 0;

  // [any thread] Sets or replaces the address of a peer, and the id of its arena (`node_instance`). Does nothing if
  // both are unchanged. Otherwise first closes the connections to the peer. A connection is made when it is needed, and
  // again after it broke.
  virtual void set_peer(PeerId peer, std::uint64_t node_instance, const std::string& address) = 0;

  // [any thread] Queues a message to a peer. Returns false, and queues nothing, if the queue is full, the message is
  // larger than message_bytes_max, or set_peer() was not called for this peer.
  virtual bool send(PeerId to, std::vector<std::byte> message) = 0;

  // [any thread] Fetches a part of a piece into `sink`. The fetch times out after `timeout_ms`. Whenever the source
  // says that the next chunk has to wait, the `timeout_ms` begin anew. After a time-out, receives under way have a
  // quarter of a second to end. Then the transport closes the connection, which ends everything that uses this
  // connection.
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

  // [any thread] The peers that the listener has rejected so far.
  virtual UnauthenticatedPeers unauthenticated_peers() const { return {}; }
};

}  // namespace ckpt::net
