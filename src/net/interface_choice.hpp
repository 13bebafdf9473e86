// Chooses the address at which other machines reach this one, if nobody named an interface.
#pragma once

#include <string>
#include <vector>

#include "net/socket_address.hpp"

namespace ckpt::net {

// An address of a network interface that is up.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;  // port 0
  bool is_loopback = false;
  bool is_link_local = false;      // 169.254.0.0/16: nobody assigned an address
  bool has_carrier = true;         // false: no cable, or a bridge without members, such as docker0 without containers
  bool is_bridge = false;          // docker0, virbr0 and the like: they lead to guests of this machine
  bool has_default_route = false;  // packets to unknown machines leave here
};

// Returns all addresses of this machine that other programs could connect to. IPv6 link-local addresses are left out,
// because they mean nothing without their interface.
std::vector<InterfaceAddress> interface_addresses();

// Returns whether other machines more likely reach `a` than `b`. Of equal addresses, IPv4 comes first.
bool is_more_reachable(const InterfaceAddress& a, const InterfaceAddress& b);

}  // namespace ckpt::net
