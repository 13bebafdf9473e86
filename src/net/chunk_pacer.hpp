// ChunkPacer is how the agent's scheduler tells the transport when it may send chunks to peers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"
#include "net/transport.hpp"

namespace ckpt::net {

struct SentChunk {
  PeerId to = 0;
  const PieceName& piece;
  std::size_t size_bytes = 0;
  Clock::time_point begin;
  Clock::time_point end;  // when the receiver's acknowledgement came
  bool alone = false;     // no other chunk of this node was under way meanwhile
};

// The transport's thread calls these functions. They must not block.
class ChunkPacer {
 public:
  virtual ~ChunkPacer() = default;
  // Returns the largest size that the next chunk of a piece may have; 0: send none now. `left_bytes` of the piece are
  // not sent yet, and `under_way` chunks of this node are under way. An allowed chunk leaves at once. After a refusal
  // the transport asks again: when a chunk has arrived if any is under way, otherwise after ask_again_us().
  virtual std::size_t allow(std::size_t left_bytes, std::size_t under_way) = 0;
  virtual void received(const SentChunk& chunk) = 0;
  // After a refusal with nothing under way: when to ask again.
  virtual std::int64_t ask_again_us() const { return 250; }
};

}  // namespace ckpt::net
