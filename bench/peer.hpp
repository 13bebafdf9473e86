// Compares transfers between agents with ucx_perftest, for several benches. The bench starts a second process, the
// peer, with a piece in its arena. The bench fetches that piece as an agent does. Then it runs ucx_perftest over the
// same transport. Both sides use loopback and two processes. The medians are compared.
//
// ucx_perftest measures the bandwidth of active messages of 16 MiB. Two buffers of that size fill a cache of 32 MiB, so
// that memory is measured, as for a checkpoint, and not the cache. ucx_perftest sends the same buffer again and again,
// notices no failure of its peer, and verifies nothing. Our side verifies all bytes. Over shm that takes a large share
// of the time. So for shm, one pass of the xxHash library over as many bytes is added to ucx_perftest's time.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "agent/pieces/worker_pool.hpp"
#include "arena/segment.hpp"
#include "core/events.hpp"
#include "net/transport.hpp"
#include "tests/net/child_process.hpp"

namespace ckpt::bench {

struct PeerSettings {
  std::size_t mib = 512;
  int rounds = 5;
  std::string transport;  // "tcp" or "shm"; "": both
  net::TransportOptions options;
  // Only in the peer's process: its transport and the size of the piece.
  std::string source_of;
  std::size_t source_bytes = 0;
};

// Fetches the peer's piece into a slot of an arena, as an agent does.
class Fetcher {
 public:
  // `layout`: the text of the piece's layout.
  Fetcher(const PeerSettings& settings, const std::string& transport, std::size_t piece_bytes,
          const std::string& layout = {});
  // Starts the fetch of the piece.
  void begin();
  // Returns when all leaves are verified and the slot is sealed. Throws if that fails.
  void finish();
  arena::Slot slot() const { return segment_->slot(0); }
  // The segment in which the piece arrives.
  UniqueFd descriptor() const;
  CheckpointId fetched() const { return expected_.checkpoint; }

 private:
  net::testing::ChildProcess source_;
  const std::shared_ptr<arena::Segment> segment_;
  agent::WorkerPool pool_;
  const std::unique_ptr<net::Transport> transport_;
  core::PieceInfo expected_;
  std::future<core::FetchResult> result_;
};

// Our side of a comparison over one transport.
struct Ours {
  std::size_t bytes = 0;      // how many bytes run() moves
  std::function<void()> run;  // what is timed
};
using MakeOurs = std::function<std::shared_ptr<Ours>(const PeerSettings& settings, const std::string& transport)>;

// The main function of these benches. Reads the options, starts the peer's process, measures both transports, and
// prints the lines "ratio: NAME_tcp = ..." and "ratio: NAME_shm = ...". Returns the exit status.
int compare_with_perftest(int argc, char** argv, const std::string& name, const MakeOurs& make_ours);

}  // namespace ckpt::bench
