// Measures how fast a state comes back that is only in a peer's memory. As in a restore, the agent first fetches the
// piece into the arena and verifies every leaf as it arrives. Then the engine copies it into the tensors and verifies
// it again. This is compared with a transfer alone (peer.hpp).
//
//   bench_restore_peer [--mib N] [--rounds N] [--chunk-kib N] [--chunks-in-flight N] [--transport tcp|shm]
#include <stdexcept>

#include "bench/gpt2.hpp"
#include "bench/peer.hpp"
#include "device/host_device.hpp"

using namespace ckpt::bench;

namespace {

class Restore {
 public:
  Restore(const PeerSettings& settings, const std::string& transport)
      : state_(settings.mib << 20, device_), fetcher_(settings, transport, bytes()) {}
  std::size_t bytes() { return state_.plan().length_bytes(); }
  void run() {
    fetcher_.fetch();
    const auto manifest = fetcher_.slot().read();
    if (!manifest || device_.load(state_.plan(), {fetcher_.slot().data(), manifest->leaves.data()}, nullptr)) {
      throw std::runtime_error("the restored bytes are not what was fetched");
    }
  }

 private:
  ckpt::device::HostDevice device_{1};  // the default of copy_threads
  Gpt2State state_;
  Fetcher fetcher_;
};

}  // namespace

int main(int argc, char** argv) {
  return compare_with_perftest(argc, argv, "restore_peer",
                               [](const PeerSettings& settings, const std::string& transport) {
                                 const auto restore = std::make_shared<Restore>(settings, transport);
                                 return std::make_shared<Ours>(Ours{restore->bytes(), [restore] { restore->run(); }});
                               });
}
