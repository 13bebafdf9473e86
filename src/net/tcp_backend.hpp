// TcpBackend makes links over the TCP connections that the listener has already authenticated. It opens no port of its
// own, and gets no data of an unauthenticated peer.
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <vector>

#include "net/link_backend.hpp"

namespace ckpt::net {

class TcpLink;

class TcpBackend final : public LinkBackend {
 public:
  // Throws Failure (CKPT_ERR_SYSTEM). `events` outlive the backend.
  TcpBackend(const TransportOptions& options, BackendEvents& events);

  // The place that the listener tells members: the connection that they already have.
  static const std::string& here();

  std::shared_ptr<Link> outgoing() override;
  const std::string& place() const override { return here(); }
  bool wants_connections() const override { return true; }
  void take_in(UniqueFd connection) override;
  unsigned progress() override;
  int event_fd() const override { return poll_.get(); }
  bool arm() override { return true; }
  bool quiet() const override { return true; }

 private:
  friend class TcpLink;
  // Waits until `connection` brings data, and with `for_room` until it has room. Returns false if the kernel refuses.
  bool watch(int connection, TcpLink& link, bool for_room, bool anew);
  void forget(int connection);

  const TransportOptions& options_;
  BackendEvents& events_;
  UniqueFd poll_;
};

}  // namespace ckpt::net
