// Converts socket addresses to and from text, and finds the address at which other machines reach this one.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ckpt::net {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size_bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// "192.0.2.7:40123" or "[fd00::2]:40123".
std::string to_text(const SocketAddress& address);
std::optional<SocketAddress> parse_socket_address(const std::string& text);

// An address (port 0) of the named interface, if it is up and has one that others could reach.
std::optional<SocketAddress> address_on(const std::string& interface);
// The address of the first interface in a list ("eth0,eth1") that has one. If the list is empty, or none of them is an
// IP interface (an RDMA device), the address of the first interface that is up and not loopback. If there is none,
// loopback.
SocketAddress local_address(const std::string& interfaces);

// Returns the same host with `port` instead of its port.
SocketAddress with_port(SocketAddress address, std::uint16_t port);

}  // namespace ckpt::net
