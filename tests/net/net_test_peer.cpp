// A node in a process of its own, to be killed or stopped by a test. It serves piece "big" version 1 (a pattern with
// seed 1) and "small". Prints its address; then takes lines "NODE INSTANCE ADDRESS" and fetches "big" version 1 from
// that peer, until standard input ends.
#include <iostream>

#include "net_support.hpp"

int main(int argc, char** argv) {
  using namespace ckpt::net;
  using namespace ckpt::net::testing;
  if (argc != 5) {
    std::cerr << "usage: net_test_peer NODE INSTANCE TRANSPORTS PIECE_BYTES\n";
    return 2;
  }
  const auto node = static_cast<PeerId>(std::stoul(argv[1]));
  Node self(loopback_options(node, std::stoull(argv[2]), argv[3]));
  self.serves({"big", 1}, pattern(std::stoull(argv[4]), 1), "manifest");
  self.serves({"small", 1}, pattern(1000, 2), "manifest");
  std::cout << self.transport->address() << std::endl;
  PeerId peer = 0;
  std::uint64_t instance = 0;
  std::string address;
  while (std::cin >> peer >> instance >> address) {
    self.transport->set_peer(peer, instance, address);
    self.fetch(peer, {"big", 1});
  }
}
