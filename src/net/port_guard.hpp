// PortGuard protects the listening socket of UCX, to which anybody could connect otherwise. Only hosts that have proven
// the token to our listener can connect to it. The kernel drops packets from all other hosts.
//
// Thread-safe.
#pragma once

#include <deque>
#include <mutex>
#include <string>

#include "base/unique_fd.hpp"
#include "net/socket_address.hpp"

namespace ckpt::net {

class PortGuard {
 public:
  // Guards the TCP socket of this process that listens at `address`, if there is one. From now on, only hosts that
  // admit() has let in reach it. Closes connections that are waiting to be accepted.
  explicit PortGuard(const SocketAddress& address);
  // True if the port is guarded. False if the kernel refuses the socket filter. Some kernels refuse it unless the user
  // is root.
  bool stands() const { return static_cast<bool>(listener_); }

  // Lets `host` connect, from any port. If the list of hosts is full, drops the host that was admitted first.
  void admit(const SocketAddress& host);

 private:
  bool apply();

  const sa_family_t family_;
  std::mutex mutex_;
  UniqueFd listener_;
  std::deque<SocketAddress> hosts_;
};

}  // namespace ckpt::net
