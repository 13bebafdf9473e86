// What the benches of transfers between agents share: a peer in a process of its own that holds a piece in its arena,
// an agent's side of fetching it, and ucx_perftest with the same transport to compare with.
//
// Theirs is ucx_perftest's active message bandwidth with messages of 16 MiB: two buffers of that size outgrow a cache
// of 32 MiB, as a checkpoint does; with small ones it measures the cache. It sends and receives the same buffer again
// and again, without peer-failure mode, and looks at no byte; over shm, where that matters most, one pass of the xxHash
// library over as many bytes is added. The medians of both sides are compared. Both use loopback
// and two processes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/pieces/worker_pool.hpp"
#include "arena/segment.hpp"
#include "core/types.hpp"
#include "net/transport.hpp"
#include "tests/net/child_process.hpp"

namespace ckpt::bench {

struct PeerSettings {
  std::size_t mib = 512;
  int rounds = 5;
  std::string transport;  // only this one
  net::TransportOptions options;
  // The peer's process: its transport and the size of the piece.
  std::string source_of;
  std::size_t source_bytes = 0;
};

// This node: fetches the piece of its peer into a slot of its arena as ckptd does.
class Fetcher {
 public:
  Fetcher(const PeerSettings& settings, const std::string& transport, std::size_t piece_bytes);
  // Returns when every leaf has been verified and the slot is sealed; throws when that fails.
  void fetch();
  arena::Slot slot() const { return segment_->slot(0); }

 private:
  net::testing::ChildProcess source_;
  const std::shared_ptr<arena::Segment> segment_;
  agent::WorkerPool pool_;
  const std::unique_ptr<net::Transport> transport_;
  core::PieceInfo expected_;
};

// One side of a comparison over one transport: what is timed, moving `bytes`.
struct Ours {
  std::size_t bytes = 0;
  std::function<void()> run;
};
using MakeOurs = std::function<std::shared_ptr<Ours>(const PeerSettings& settings, const std::string& transport)>;

// The whole program: options, the peer's process, both transports, the lines "ratio: NAME_tcp = ...".
int compare_with_perftest(int argc, char** argv, const std::string& name, const MakeOurs& make_ours);

}  // namespace ckpt::bench
