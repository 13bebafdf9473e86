// PortGuard protects the listening socket of UCX, to which anybody could connect otherwise. Only hosts that have proven
// the token to our listener can connect. The kernel drops packets from all others.
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
  // Guards the TCP socket of this process that listens at `address`, if there is one. From now on nobody reaches it.
  // Closes the connections made before.
  explicit PortGuard(const SocketAddress& address);
  // True if the guard works: some kernels let only root set socket filters.
  bool stands() const { return static_cast<bool>(listener_); }

  // Lets `host` connect from any port. If the list of hosts is full, the host that was admitted first is removed.
  void admit(const SocketAddress& host);

 private:
  bool apply();

  const sa_family_t family_;
  std::mutex mutex_;
  UniqueFd listener_;
  std::deque<SocketAddress> hosts_;
};

}  // namespace ckpt::net
