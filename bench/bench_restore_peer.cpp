// How fast a state comes back that lies in a peer's memory only: the agents' fetch into the arena, every leaf verified
// as it lands, and then the engine's copy into the tensors, verified again, as restore() does them one after the other.
// See peer.hpp for what it is compared with: the transfer alone.
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
  ckpt::device::HostDevice device_{1};  // copy_threads, by default
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
