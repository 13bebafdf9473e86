// ChunkPacer decides when the transport may send chunks to peers. The agent's scheduler implements it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"
#include "net/transport.hpp"

namespace ckpt::net {

// A chunk that a peer has received.
struct SentChunk {
  PeerId to = 0;
  const PieceName& piece;
  std::size_t size_bytes = 0;
  Clock::time_point begin;  // when the transport began to send it
  Clock::time_point end;    // when the receiver's acknowledgement came
  bool alone = false;       // no other chunk of this node was under way between `begin` and `end`
};

// The transport's thread calls all functions. They must not block.
class ChunkPacer {
 public:
  virtual ~ChunkPacer() = default;
  // Returns how many bytes the next chunk of a piece may have, or 0 if none may be sent now. `left_bytes`: how much of
  // the piece is not sent yet. `under_way`: how many chunks of this node are under way. The transport sends an allowed
  // chunk at once. After a 0, it asks again when a chunk under way has arrived, or after ask_again_us() if none is
  // under way.
  virtual std::size_t allow(std::size_t left_bytes, std::size_t under_way) = 0;
  // Tells the pacer that a peer has received a chunk.
  virtual void received(const SentChunk& chunk) = 0;
  // Returns after how many microseconds to ask again if allow() returned 0 and no chunk is under way.
  virtual std::int64_t ask_again_us() const { return 250; }
};

}  // namespace ckpt::net
