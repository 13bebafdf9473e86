// LinkBackend makes the links of a node: over TCP streams of our own (tcp_backend.hpp) or over UCX (ucx_backend.hpp).
//
// Not thread-safe: only the transport's thread uses it, except for functions marked [any thread].
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/link.hpp"

namespace ckpt::net {

// What a backend tells the transport. LinkBackend::progress() calls these functions.
class BackendEvents {
 public:
  virtual void arrived(wire::Kind kind, const std::shared_ptr<Link>& from, Arrival& arrival) = 0;
  // Returns whether the transport has room for one more incoming link.
  virtual bool has_room() = 0;
  // Tells that an incoming link is open. Its peer has not yet proven on this link which node it is.
  virtual void joined(const std::shared_ptr<Link>& link) = 0;

 protected:
  ~BackendEvents() = default;
};

class LinkBackend {
 public:
  virtual ~LinkBackend() = default;

  // Makes a link that Link::open() opens later.
  virtual std::shared_ptr<Link> outgoing() = 0;
  // [any thread] The place where peers reach this backend (Asking::place()). The listener tells it to peers that have
  // proven the token.
  virtual const std::string& place() const = 0;
  // [any thread] True if the backend has a port of its own that unauthenticated peers can reach from any address.
  virtual bool is_open_to_unauthenticated_peers() const { return false; }
  // [any thread] Lets the host of the address `from` ("192.0.2.7:40123") reach the backend. Call this when a peer at
  // this address has proven the token.
  virtual void admit(const std::string& /*from*/) {}
  // True if the backend makes links of the connections on which peers have proven the token to the listener. If false,
  // the listener closes these connections.
  virtual bool wants_connections() const = 0;
  // Makes an incoming link of a connection on which a peer has proven the token to the listener.
  virtual void take_in(UniqueFd connection) = 0;

  // Does the work that there is now. Returns 0 if there was none.
  virtual unsigned progress() = 0;
  // A descriptor to wait on while there is no work. See arm().
  virtual int event_fd() const = 0;
  // Makes sure that event_fd() becomes readable at the next event. Returns false if there is work already: then call
  // progress() instead of waiting.
  virtual bool arm() = 0;
  // True if no connection is being closed. While one is, go on calling progress().
  virtual bool quiet() const = 0;

  // Number of links that have failed and are not closed yet.
  std::size_t failures() const { return failures_; }

 protected:
  std::size_t failures_ = 0;
};

// True if links with these options are TCP streams of our own, false if they use UCX.
bool uses_streams(const TransportOptions& options);

// Makes the backend that options.transports names. Throws Failure (CKPT_ERR_SYSTEM). `options` and `events` must
// outlive the backend.
std::unique_ptr<LinkBackend> make_backend(const TransportOptions& options, BackendEvents& events);

}  // namespace ckpt::net
