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

// Text like "192.0.2.7:40123" or "[fd00::2]:40123". Parsing returns nothing for any other text.
std::string to_text(const SocketAddress& address);
std::optional<SocketAddress> parse_socket_address(const std::string& text);

// Returns an address of the named network interface, with port 0. Returns nothing if the interface is down, or has no
// address that other machines could reach.
std::optional<SocketAddress> address_on(const std::string& interface);
// Returns an address, with port 0, of the first interface in the list ("eth0,eth1") that has one. If none has, as with
// RDMA devices, or if the list is empty: the address that other machines most likely reach (interface_choice.hpp). The
// loopback address comes last.
SocketAddress local_address(const std::string& interfaces);

// Returns `address` with another port.
SocketAddress with_port(SocketAddress address, std::uint16_t port);

}  // namespace ckpt::net
