// Link is one connection of the transport to a peer. It runs over a TCP stream of ours (tcp_link.hpp) or over UCX
// (ucx_link.hpp).
//
// An operation is a send or a receive under way. It ends when its bytes were sent or received, or some time after the
// link was closed. Then the link calls the operation's `done`, exactly once, and nobody can reach the operation's
// memory any more. A link with operations fails if it makes no progress for TransportOptions::progress_timeout_ms,
// because the peer may be stopped but alive.
//
// This node makes an outgoing link, and a peer makes an incoming one. An outgoing link exists before its connection
// does. It is open once the peer's listener has accepted this node.
//
// Not thread-safe: only the transport's thread uses it.
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

// A frame from a peer. Valid only during the call that delivers it.
struct Arrival {
  std::span<const std::byte> header;
  void* payload = nullptr;  // the bytes; if `to_receive` is true, a handle with which the link receives them
  std::size_t payload_bytes = 0;
  bool to_receive = false;  // the payload is still to be received
  bool taken = false;       // receive() was called, so the link must not drop the payload

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(payload), payload_bytes}; }
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  // Called when an operation has ended. `ok` is true if the bytes were received, or were sent as far as we can tell.
  // May be called before the call that started the operation returns.
  using Done = std::function<void(bool ok)>;

  // `failures` counts the links that have failed and are not closed yet.
  Link(bool outgoing, std::size_t& failures) : outgoing_(outgoing), failures_(failures) {}
  virtual ~Link() = default;

  // Opens an outgoing link. `place` and `connection` are what dialing the peer's listener gave (Listener::DialResult).
  // Returns false if no link can be made of them.
  virtual bool open(const std::string& place, UniqueFd connection) = 0;
  bool outgoing() const { return outgoing_; }

  // The node at the other end. For an incoming link, valid only once proven().
  PeerId peer() const { return peer_; }
  std::uint64_t peer_instance() const { return peer_instance_; }
  // True once the peer's hello has proven which node the peer is.
  bool proven() const { return proven_; }
  // Sets which node, with which arena, should be at the other end. `instance` is the id of the node's arena.
  void expect(PeerId peer, std::uint64_t instance);
  // For an outgoing link: sets the session. The peer's hello must prove that the peer has the same session.
  void expect(const Session& session) { session_ = session; }
  const Session& session() const { return session_; }
  // Call this when the peer's hello has proven that the peer has `session`. Then proven() is true.
  void prove(const Session& session);
  // Runs `work` as soon as proven() is true, which may be now. Never runs it if the link fails first.
  void when_proven(std::function<void()> work);

  // Sends a frame: the session's seal, the header, the payload. `payload` must stay valid until `done` is called; the
  // link holds `keep`, which may own the payload, until then. `done` may be null.
  template <class Header>
  void send(wire::Kind kind, const Header& header, std::span<const std::byte> payload = {},
            const std::shared_ptr<const void>& keep = nullptr, const Done& done = nullptr) {
    send_bytes(kind, wire::bytes_of(header), payload, keep, done);
  }
  void send_bytes(wire::Kind kind, std::span<const std::byte> header, std::span<const std::byte> payload,
                  std::shared_ptr<const void> keep, Done done);
  // Removes the seal from the header of `arrival`. Returns false if the seal is not that of this link's session.
  bool unseal(Arrival& arrival) const;
  // Receives the payload of `arrival` into `memory`, which must have the same size. Call it only inside the call that
  // delivers `arrival`.
  void receive(Arrival& arrival, std::span<std::byte> memory, Done done);

  // Passes the payload of `arrival` to `then`, at once or when it was received. Drops the payload if more than 128 MiB
  // of payloads would be under way to us on this link.
  void read(Arrival& arrival, std::function<void(std::span<const std::byte>)> then);

  // Marks the link as failed. If it has failed already, keeps the first reason. The link's owner closes it afterwards.
  void fail(FetchEnd reason);
  // Marks the link as failed, but does not report the peer as failed. Use this if this node drops the link, or if an
  // unauthenticated peer made the link.
  void retire();
  bool failed() const { return failed_; }
  bool retired() const { return retired_; }
  FetchEnd failure() const { return failure_; }
  // Marks the link as failed if it has operations and has made no progress for `timeout_ms`.
  void check_progress(std::int64_t timeout_ms);
  void note_progress() { progressed_at_ms_ = now_ms(); }
  std::int64_t progressed_at_ms() const { return progressed_at_ms_; }

  // Closes the connection and does not wait. Operations under way usually end some time later. end_operations() ends
  // those that do not.
  void close();
  // True if no operation is under way.
  virtual bool idle() const = 0;
  virtual void end_operations() = 0;

 protected:
  struct Header {
    std::array<std::byte, sizeof(wire::Hello)> bytes = {};  // the largest header
    std::size_t size_bytes = 0;

    std::span<const std::byte> span() const { return std::span(bytes).first(size_bytes); }
  };
  virtual bool is_open() const = 0;
  // Sends a frame on an open link. The arguments are as in send_bytes().
  virtual void transmit(wire::Kind kind, const Header& header, std::span<const std::byte> payload,
                        std::shared_ptr<const void> keep, Done done) = 0;
  // Receives the payload of an arrival with `to_receive`. The arguments are as in receive().
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
