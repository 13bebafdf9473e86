#include "net/socket_address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

#include "net/interface_choice.hpp"

namespace ckpt::net {
namespace {

// The most reachable address of the named interface, or of all interfaces.
std::optional<SocketAddress> best_address(const std::optional<std::string>& interface) {
  std::vector<InterfaceAddress> found = interface_addresses();
  if (interface) std::erase_if(found, [&](const InterfaceAddress& each) { return each.interface != *interface; });
  const auto best = std::min_element(found.begin(), found.end(), is_more_reachable);
  return best == found.end() ? std::nullopt : std::optional(best->address);
}

}  // namespace

std::string to_text(const SocketAddress& address) {
  char host[INET6_ADDRSTRLEN] = "";
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
  return std::string("[").append(host).append("]:").append(std::to_string(ntohs(v6.sin6_port)));
}

std::optional<SocketAddress> parse_socket_address(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;

  SocketAddress address;
  if (text.front() == '[') {
    if (text[colon - 1] != ']') return std::nullopt;
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.size_bytes = sizeof v6;
    if (inet_pton(AF_INET6, text.substr(1, colon - 2).c_str(), &v6.sin6_addr) != 1) return std::nullopt;
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.size_bytes = sizeof v4;
    if (inet_pton(AF_INET, text.substr(0, colon).c_str(), &v4.sin_addr) != 1) return std::nullopt;
  }
  return address;
}

SocketAddress with_port(SocketAddress address, std::uint16_t port) {
  if (address.storage.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = htons(port);
  else
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = htons(port);
  return address;
}

std::optional<SocketAddress> address_on(const std::string& interface) { return best_address(interface); }

SocketAddress local_address(const std::string& interfaces) {
  std::istringstream names(interfaces);
  for (std::string name; std::getline(names, name, ',');)
    if (const auto address = best_address(name)) return *address;
  return best_address(std::nullopt).value_or(*parse_socket_address("127.0.0.1:0"));
}

}  // namespace ckpt::net
