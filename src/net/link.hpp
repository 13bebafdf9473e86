// One connection to a peer, whatever carries it: a TCP stream of ours (tcp_link.hpp) or UCX (ucx_link.hpp).
//
// An operation is a send or a receive under way. It is over when its bytes were sent or received, or some time after
// the link was closed: from then on nobody can reach its memory. Either way its `done` runs exactly once. A link that
// makes no progress for too long while operations are under way has failed: the kernel does not notice a peer that is
// stopped but alive, nor does UCX.
//
// An outgoing link is there before its connection: it opens when the peer's listener has let this node in.
//
// Not thread-safe: everything on the transport's thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "net/session.hpp"
#include "net/transport.hpp"
#include "net/wire.hpp"

namespace ckpt::net {

// Milliseconds on the monotonic clock.
std::int64_t now_ms();

// A frame from a peer, during the call that delivers it.
struct Arrival {
  std::span<const std::byte> header;
  void* payload = nullptr;  // the bytes themselves, or the link's name for bytes that are to be received
  std::size_t payload_bytes = 0;
  bool to_receive = false;
  bool taken = false;  // a receive was posted: the link must not drop the payload

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(payload), payload_bytes}; }
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  // `ok`: sent as far as we can tell, or received. May run before the call that started the operation returns.
  using Done = std::function<void(bool ok)>;

  // `failures` counts the links that failed and are not closed yet.
  Link(bool outgoing, std::size_t& failures) : outgoing_(outgoing), failures_(failures) {}
  virtual ~Link() = default;

  // Opens an outgoing link. `place` and `connection` are what the dial to the peer's listener has brought. False where
  // that is nothing to talk over.
  virtual bool open(const std::string& place, UniqueFd connection) = 0;
  bool outgoing() const { return outgoing_; }

  // Who is at the other end; meaningful once proven.
  PeerId peer() const { return peer_; }
  std::uint64_t peer_instance() const { return peer_instance_; }
  bool proven() const { return proven_; }
  void expect(PeerId peer, std::uint64_t instance);
  // Of an outgoing link: what the peer's answer will prove.
  void expect(const Session& session) { session_ = session; }
  const Session& session() const { return session_; }
  void prove(const Session& session);
  // Runs `work` once the peer is proven: now, or later, or never when the link fails before.
  void when_proven(std::function<void()> work);

  // `payload` stays valid until `done`; `keep` is held until then. The seal of the session goes before the header.
  template <class Header>
  void send(wire::Kind kind, const Header& header, std::span<const std::byte> payload = {},
            const std::shared_ptr<const void>& keep = nullptr, const Done& done = nullptr) {
    send_bytes(kind, wire::bytes_of(header), payload, keep, done);
  }
  void send_bytes(wire::Kind kind, std::span<const std::byte> header, std::span<const std::byte> payload,
                  std::shared_ptr<const void> keep, Done done);
  // Takes the seal off; false where it is not this session's.
  bool unseal(Arrival& arrival) const;
  // Receives the payload of `arrival` (inside the call that delivers it) into `memory` of the same size.
  void receive(Arrival& arrival, std::span<std::byte> memory, Done done);

  // Hands the payload of `arrival` to `then`, now or when it was received; drops it when too much is under way.
  void read(Arrival& arrival, std::function<void(std::span<const std::byte>)> then);

  // Why the link is no longer used; set once, by whoever notices first. The owner then closes it.
  void fail(FetchEnd reason);
  // Fails a link of which nobody need hear: ours to drop, or an unauthenticated peer's.
  void retire();
  bool failed() const { return failed_; }
  bool retired() const { return retired_; }
  FetchEnd failure() const { return failure_; }
  // Fails a link without progress for `timeout_ms`.
  void check_progress(std::int64_t timeout_ms);
  void note_progress() { progressed_at_ms_ = now_ms(); }
  std::int64_t progressed_at_ms() const { return progressed_at_ms_; }

  // Closes the connection. Operations under way then end on their own, or are given up by end_operations().
  void close();
  virtual bool idle() const = 0;
  virtual void end_operations() = 0;

 protected:
  struct Header {
    std::array<std::byte, sizeof(wire::Hello)> bytes = {};  // the largest
    std::size_t size_bytes = 0;

    std::span<const std::byte> span() const { return std::span(bytes).first(size_bytes); }
  };
  virtual bool is_open() const = 0;
  // Of an open link; see send_bytes().
  virtual void transmit(wire::Kind kind, const Header& header, std::span<const std::byte> payload,
                        std::shared_ptr<const void> keep, Done done) = 0;
  // Of an arrival whose payload is to be received.
  virtual void receive_rest(Arrival& arrival, std::span<std::byte> memory, Done done) = 0;
  virtual void shut() = 0;

 private:
  const bool outgoing_;
  std::size_t& failures_;
  PeerId peer_ = 0;
  std::uint64_t peer_instance_ = 0;
  bool proven_ = false;
  Session session_;
  std::uint64_t seal_out_ = 0;  // 0: none yet
  std::uint64_t seal_in_ = 0;
  bool closed_ = false;
  bool failed_ = false;
  bool retired_ = false;
  FetchEnd failure_ = FetchEnd::peer_failed;
  std::vector<std::function<void()>> waiting_;
  std::size_t incoming_bytes_ = 0;
  std::int64_t progressed_at_ms_ = now_ms();
};

}  // namespace ckpt::net
