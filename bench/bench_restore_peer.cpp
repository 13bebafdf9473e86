// Measures how fast a state comes back that is only in a peer's memory. As in a restore, the agent fetches the piece
// into the arena and verifies every leaf as it arrives. Meanwhile the engine's EarlyLoad copies the leaves that have
// arrived into the tensors, and verifies them again. This is compared with a transfer alone (peer.hpp).
//
//   bench_restore_peer [--mib N] [--rounds N] [--chunk-kib N] [--chunks-in-flight N] [--transport tcp|shm]
#include <stdexcept>

#include "bench/gpt2.hpp"
#include "bench/peer.hpp"
#include "client/early_load.hpp"
#include "device/host_device.hpp"

using namespace ckpt::bench;
using ckpt::client::EarlyLoad;

namespace {

class Restore {
 public:
  Restore(const PeerSettings& settings, const std::string& transport)
      : state_(settings.mib << 20, device_), fetcher_(settings, transport, bytes(), state_.rank().main.layout_text) {}
  std::size_t bytes() { return state_.plan().length_bytes(); }
  void run() {
    fetcher_.begin();
    EarlyLoad load(device_, state_.rank());
    load.follow({ckpt::arena::Segment::attach(fetcher_.descriptor(), ckpt::arena::Segment::Access::read, "the slot"), 0,
                 fetcher_.fetched()});
    while (load.step()) {
    }
    fetcher_.finish();
    const auto manifest = fetcher_.slot().read();
    if (!manifest || load.leaves_loaded(*manifest) != manifest->leaves.size())
      throw std::runtime_error("the restored bytes are not what was fetched");
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
