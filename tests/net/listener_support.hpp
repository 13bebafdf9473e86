// Lets a test dial a node's listener and send each byte of the handshake itself.
#pragma once

#include <poll.h>

#include <stdexcept>

#include "base/unique_fd.hpp"
#include "net/handshake.hpp"
#include "net/socket_address.hpp"
#include "net_support.hpp"

namespace ckpt::net::testing {

inline Identity member(PeerId node, std::uint64_t instance) { return {"test job", "test token", node, instance}; }

inline Nonce nonce_of(int seed) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(seed));
  return nonce;
}

// A TCP connection to a listener.
class Connection {
 public:
  // `from`: a host and port 0 to come from.
  explicit Connection(const std::string& to, const std::string& from = "") : Connection(*parse_socket_address(to)) {
    if (!from.empty()) {
      const auto source = *parse_socket_address(from);
      if (::bind(fd_.get(), source.get(), source.size_bytes) != 0) throw std::runtime_error("cannot bind");
    }
    made_ = ::connect(fd_.get(), address_.get(), address_.size_bytes) == 0;
  }
  bool made() const { return made_; }
  int fd() const { return fd_.get(); }
  UniqueFd take() { return std::move(fd_); }
  bool send(std::span<const std::byte> bytes) const {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // Exactly so many; fewer when the connection ended before.
  std::vector<std::byte> receive(std::size_t size_bytes) const {
    std::vector<std::byte> bytes(size_bytes);
    std::size_t got_bytes = 0;
    while (got_bytes < size_bytes && readable()) {
      const ssize_t got = ::recv(fd_.get(), bytes.data() + got_bytes, size_bytes - got_bytes, 0);
      if (got <= 0) break;
      got_bytes += static_cast<std::size_t>(got);
    }
    bytes.resize(got_bytes);
    return bytes;
  }
  // Whether the other side hangs up, whatever it sends before.
  bool ends() const {
    std::byte any;
    while (readable()) {
      if (::recv(fd_.get(), &any, 1, 0) <= 0) return true;
    }
    return false;
  }
  void end(bool reset) {
    const linger no_linger{1, 0};
    if (reset) ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &no_linger, sizeof no_linger);
    fd_.reset();
  }

 private:
  explicit Connection(const SocketAddress& to)
      : address_(to), fd_(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  bool readable() const {
    pollfd entry{fd_.get(), POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(wait_limit).count())) == 1;
  }

  SocketAddress address_;
  UniqueFd fd_;
  bool made_ = false;
};

// The handshake as the asker, to its end.
inline Asking dial(const Connection& listener, const Identity& self, PeerId peer, std::uint64_t peer_instance) {
  static int visits = 0;
  Asking asking(self, peer, peer_instance, nonce_of(++visits));
  listener.send(asking.opening());
  while (const std::size_t due_bytes = asking.due_bytes()) {
    const auto frame = listener.receive(due_bytes);
    if (frame.size() < due_bytes) break;
    if (const auto answer = asking.take(frame); !answer.empty()) listener.send(answer);
  }
  return asking;
}

// To instance 100 of node 1, to which most tests connect.
inline Asking dial(const std::string& listener, const Identity& self) {
  return dial(Connection(listener), self, 1, 100);
}

inline std::string ucx_address_behind(const std::string& listener) { return dial(listener, member(9, 900)).place(); }

}  // namespace ckpt::net::testing
