// Which address an agent publishes if nobody named an interface.
#include "net/interface_choice.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace ckpt::net {
namespace {

InterfaceAddress ethernet(const std::string& address = "10.0.0.1:0") {
  return {.interface = "eth0", .address = *parse_socket_address(address), .has_default_route = true};
}

TEST(InterfaceChoice, PrefersARealNetworkToEverythingElse) {
  InterfaceAddress loopback = ethernet(), link_local = ethernet(), unplugged = ethernet(), bridge = ethernet(),
                   without_route = ethernet();
  loopback.is_loopback = true;
  link_local.is_link_local = true;
  unplugged.has_carrier = false;
  bridge.is_bridge = true;
  without_route.has_default_route = false;
  for (const auto& other : {loopback, link_local, unplugged, bridge, without_route, ethernet("[fd00::1]:0")}) {
    EXPECT_TRUE(is_more_reachable(ethernet(), other));
    EXPECT_FALSE(is_more_reachable(other, ethernet()));
  }
}

TEST(InterfaceChoice, PrefersAPrivateNetworkToABridgeWithTheDefaultRoute) {
  InterfaceAddress bridge = ethernet("172.17.0.1:0");
  bridge.is_bridge = true;
  InterfaceAddress fabric = ethernet("10.77.0.1:0");
  fabric.has_default_route = false;
  EXPECT_TRUE(is_more_reachable(fabric, bridge));
}

TEST(InterfaceChoice, PrefersAnUnpluggedInterfaceToLoopback) {
  InterfaceAddress unplugged = ethernet(), loopback = ethernet("127.0.0.1:0");
  unplugged.has_carrier = false;
  loopback.is_loopback = true;
  EXPECT_TRUE(is_more_reachable(unplugged, loopback));
}

TEST(InterfaceChoice, FindsTheLoopbackAddressOfThisMachine) {
  const auto found = interface_addresses();
  EXPECT_TRUE(std::any_of(found.begin(), found.end(),
                          [](const auto& each) { return each.is_loopback && to_text(each.address) == "127.0.0.1:0"; }));
}

}  // namespace
}  // namespace ckpt::net
