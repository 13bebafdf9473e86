// Ucx owns what the transport uses of the library UCX: one context, one worker and one listener. If the listener's port
// is given, UCX's own listener takes the next port, and its data sockets take some of the six after that.
//
// Agents connect by socket address and not by UCX worker address. So each connection has its own endpoint on both
// sides. Each side knows when its endpoint is closed, and notices at once when the peer has died. With worker
// addresses, UCX pairs the endpoints of the two sides by counting them. If one side gives up a connection that the
// other side never saw, the counts no longer match (docs/operations.md).
//
// Endpoints run in UCX's peer-failure mode, and a sender never writes bulk data into the receiver's memory. The
// receiver reads the data from the sender's memory or copies it out of a socket. So the buffers can be used again once
// an endpoint is closed and its receives have called back. A peer that was stopped and wakes later cannot write to
// them.
//
// Not thread-safe: only the transport's thread may use it. UCX calls `UcxEvents` from inside progress().
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "net/async_gate.hpp"
#include "net/link.hpp"
#include "net/port_guard.hpp"
#include "net/transport.hpp"
#include "net/wire.hpp"

namespace ckpt::net {

class UcxEvents {
 public:
  virtual void arrived(wire::Kind kind, ucp_ep_h from, Arrival& arrival) = 0;
  virtual void connection_requested(ucp_conn_request_h request) = 0;

 protected:
  ~UcxEvents() = default;
};

class Ucx {
 public:
  // Starts UCX and listens. Throws Failure (CKPT_ERR_SYSTEM) if that fails.
  Ucx(const TransportOptions& options, UcxEvents& events);
  // All endpoints must have been closed.
  ~Ucx();
  Ucx(const Ucx&) = delete;
  Ucx& operator=(const Ucx&) = delete;

  ucp_worker_h worker() const { return worker_; }
  unsigned progress() { return ucp_worker_progress(worker_); }
  int event_fd() const { return event_fd_; }
  // Makes sure that event_fd() becomes readable at the next event. Returns false if there is work already: then call
  // progress() instead of waiting.
  bool arm() { return ucp_worker_arm(worker_) == UCS_OK; }

  // The address of the listener: "192.0.2.7:40123", "[fd00::2]:40123".
  const std::string& address() const { return address_; }

  // True if only admitted hosts reach the listener.
  bool is_guarded() const { return guard_->stands(); }
  // [any thread] Lets the host at this address reach the listener.
  void admit(const std::string& from);

  // connect() and accept() return an endpoint whose failure UCX reports to `handler`, or null if UCX refuses.
  ucp_ep_h connect(const std::string& address, const ucp_err_handler_t& handler);
  ucp_ep_h accept(ucp_conn_request_h request, const ucp_err_handler_t& handler);
  void reject(ucp_conn_request_h request);
  // Closes the endpoint. The handle is invalid afterwards. Operations under way call back with an error during later
  // calls of progress().
  void close(ucp_ep_h endpoint);
  int closes_in_flight() const { return closes_in_flight_; }

 private:
  struct KindHandler {
    UcxEvents* events;
    wire::Kind kind;
  };
  void start(const TransportOptions& options);
  void stop();
  void listen(const TransportOptions& options);
  static ucs_status_t on_active_message(void* kind_handler, const void* header, std::size_t header_bytes, void* payload,
                                        std::size_t payload_bytes, const ucp_am_recv_param_t* parameters);

  UcxEvents& events_;
  KindHandler handlers_[wire::kind_end] = {};
  AsyncGate gate_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  std::optional<PortGuard> guard_;
  int event_fd_ = -1;
  int closes_in_flight_ = 0;
  std::string address_;
};

}  // namespace ckpt::net
