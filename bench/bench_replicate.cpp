// Measures how fast a piece comes from a peer's arena into ours. Every leaf is verified as it arrives. peer.hpp says
// what that is compared with.
//
//   bench_replicate [--mib N] [--rounds N] [--chunk-kib N] [--chunks-in-flight N] [--transport tcp|shm]
#include "bench/peer.hpp"

using namespace ckpt::bench;

int main(int argc, char** argv) {
  return compare_with_perftest(argc, argv, "replicate", [](const PeerSettings& settings, const std::string& transport) {
    const std::size_t bytes = settings.mib << 20;
    const auto fetcher = std::make_shared<Fetcher>(settings, transport, bytes);
    return std::make_shared<Ours>(Ours{bytes, [fetcher] {
                                         fetcher->begin();
                                         fetcher->finish();
                                       }});
  });
}
