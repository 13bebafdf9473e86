// What carries the links of a node: TCP streams of our own (tcp_backend.hpp), or UCX (ucx_backend.hpp).
//
// Not thread-safe: everything on the transport's thread, except what says otherwise.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/link.hpp"

namespace ckpt::net {

// Who hears of what happens; called from inside progress().
class BackendEvents {
 public:
  virtual void arrived(wire::Kind kind, const std::shared_ptr<Link>& from, Arrival& arrival) = 0;
  // Whether one more incoming link can be kept.
  virtual bool has_room() = 0;
  // An incoming link is open; nobody has proven anything on it yet.
  virtual void joined(const std::shared_ptr<Link>& link) = 0;

 protected:
  ~BackendEvents() = default;
};

class LinkBackend {
 public:
  virtual ~LinkBackend() = default;

  // A link that Link::open() opens later.
  virtual std::shared_ptr<Link> outgoing() = 0;
  // [any thread] What the listener tells members: how to reach this backend.
  virtual const std::string& place() const = 0;
  // [any thread] Whether unauthenticated peers reach a port of its own, from any address.
  virtual bool is_open_to_unauthenticated_peers() const { return false; }
  // [any thread] Who comes from this address ("192.0.2.7:40123") has proven itself, and may reach it.
  virtual void admit(const std::string& /*from*/) {}
  // Whether it wants the connections on which members came to the listener; else they end there.
  virtual bool wants_connections() const = 0;
  // Takes one of them.
  virtual void take_in(UniqueFd connection) = 0;

  // Does what there is to do; 0 when that was nothing.
  virtual unsigned progress() = 0;
  virtual int event_fd() const = 0;
  // Makes event_fd() readable at the next event; false: there is something to progress now.
  virtual bool arm() = 0;
  // Whether connections that were closed are gone.
  virtual bool quiet() const = 0;

  // Links that failed and are not closed yet.
  std::size_t failures() const { return failures_; }

 protected:
  std::size_t failures_ = 0;
};

// Whether links are streams of our own.
bool uses_streams(const TransportOptions& options);

// Throws Failure (CKPT_ERR_SYSTEM). `options` and `events` outlive it.
std::unique_ptr<LinkBackend> make_backend(const TransportOptions& options, BackendEvents& events);

}  // namespace ckpt::net
