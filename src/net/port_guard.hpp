// Keeps a listening socket of somebody else's code to hosts that have proven themselves elsewhere: the kernel drops
// what comes from other addresses, before a connection is made.
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
  // Of the TCP socket of this process that listens at `address`, if there is one. Nobody reaches it from now on, and
  // who has reached it before is hung up on.
  explicit PortGuard(const SocketAddress& address);
  // Whether it keeps anybody out: some kernels refuse filters to all users but root.
  bool stands() const { return static_cast<bool>(listener_); }

  // Lets this host connect, whatever its port. Those that were let in first make room.
  void admit(const SocketAddress& host);

 private:
  bool apply();

  const sa_family_t family_;
  std::mutex mutex_;
  UniqueFd listener_;
  std::deque<SocketAddress> hosts_;
};

}  // namespace ckpt::net
