// When chunks may leave: what a scheduler tells the transport that serves pieces to peers.
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
  Clock::time_point end;  // when its receiver's word was here that it has arrived
  bool alone = false;     // no other chunk of this node was under way meanwhile
};

// Called on the transport's thread; must not block.
class ChunkPacer {
 public:
  virtual ~ChunkPacer() = default;
  // A chunk of a piece of which `left_bytes` are still to be sent waits to leave, while `under_way` chunks of this node
  // are. Returns how large it may be at most; 0: not now. What is allowed leaves. What is not is asked for again: when
  // a chunk has arrived if any is under way, and else after ask_again_us().
  virtual std::size_t allow(std::size_t left_bytes, std::size_t under_way) = 0;
  virtual void received(const SentChunk& chunk) = 0;
  // After a refusal with nothing under way: in how long it is worth asking again.
  virtual std::int64_t ask_again_us() const { return 250; }
};

}  // namespace ckpt::net
