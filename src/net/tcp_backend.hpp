// TcpBackend makes links over TCP connections on which the peer has proven the token to the listener. It opens no port
// itself, and gets no data from unauthenticated peers.
//
// Not thread-safe: only the transport's thread uses it.
#pragma once

#include <vector>

#include "net/link_backend.hpp"

namespace ckpt::net {

class TcpLink;

class TcpBackend final : public LinkBackend {
 public:
  // Throws Failure (CKPT_ERR_SYSTEM) if the kernel refuses an epoll descriptor. `options` and `events` must outlive the
  // backend.
  TcpBackend(const TransportOptions& options, BackendEvents& events);

  // Returns "stream", the place (Asking::place()) that means: go on with the connection of the handshake.
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
  // Makes progress() serve `link` when data arrives on `connection`. If `for_room`, also when the connection can take
  // more data to send. `anew`: true in the first call for this connection. Returns false if the kernel refuses.
  bool watch(int connection, TcpLink& link, bool for_room, bool anew);
  void forget(int connection);

  const TransportOptions& options_;
  BackendEvents& events_;
  UniqueFd poll_;
};

}  // namespace ckpt::net
