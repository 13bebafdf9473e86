#include "net/interface_choice.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>

namespace ckpt::net {
namespace {

// Container runtimes and hypervisors name their bridges so. /sys tells of bridges, too, but it may show those of
// another network namespace.
constexpr std::array<std::string_view, 8> bridge_names = {"docker", "br-", "virbr",  "lxcbr",
                                                          "lxdbr",  "cni", "podman", "flannel"};

bool is_bridge(const std::string& interface) {
  std::error_code ignored;
  return std::any_of(bridge_names.begin(), bridge_names.end(),
                     [&](std::string_view name) { return interface.starts_with(name); }) ||
         std::filesystem::exists("/sys/class/net/" + interface + "/bridge", ignored);
}

// Interfaces of the routes to 0.0.0.0/0 and ::/0.
std::set<std::string> default_interfaces() {
  std::set<std::string> names;
  std::ifstream v4("/proc/net/route");
  std::string line;
  std::getline(v4, line);
  while (std::getline(v4, line)) {
    std::istringstream words(line);
    std::string name, destination, skipped, mask;
    words >> name >> destination;
    for (int i = 0; i < 5; ++i) words >> skipped;
    if (words >> mask && destination == "00000000" && mask == "00000000") names.insert(name);
  }
  std::ifstream v6("/proc/net/ipv6_route");
  while (std::getline(v6, line)) {
    std::istringstream words(line);
    std::string destination, length, word, name;
    words >> destination >> length;
    while (words >> word) name = word;
    if (length == "00" && destination == std::string(32, '0')) names.insert(name);
  }
  return names;
}

SocketAddress copy_of(const sockaddr* address) {
  SocketAddress result;
  result.size_bytes = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&result.storage, address, result.size_bytes);
  return result;
}

bool is_usable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || !(entry.ifa_flags & IFF_UP)) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  return entry.ifa_addr->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

bool is_link_local_v4(const sockaddr* address) {
  if (address->sa_family != AF_INET) return false;
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 16 == 0xA9FE;  // 169.254
}

auto likelihood(const InterfaceAddress& each) {
  const bool is_v6 = each.address.storage.ss_family == AF_INET6;
  return std::tuple(!each.is_loopback, !each.is_link_local, each.has_carrier, !each.is_bridge, each.has_default_route,
                    !is_v6);
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* entries = nullptr;
  if (getifaddrs(&entries) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(entries, &freeifaddrs);
  const std::set<std::string> defaults = default_interfaces();
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if (!is_usable(*entry)) continue;
    const std::string name = entry->ifa_name;
    found.push_back({.interface = name,
                     .address = copy_of(entry->ifa_addr),
                     .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                     .is_link_local = is_link_local_v4(entry->ifa_addr),
                     .has_carrier = (entry->ifa_flags & IFF_RUNNING) != 0,
                     .is_bridge = is_bridge(name),
                     .has_default_route = defaults.contains(name)});
  }
  return found;
}

bool is_more_reachable(const InterfaceAddress& a, const InterfaceAddress& b) { return likelihood(a) > likelihood(b); }

}  // namespace ckpt::net
