// ReceiveBackoff decides whether a fetch waits for bytes that should arrive by GPU replication, or asks the other node
// at once. If a fetch has waited and less than half of the piece arrived, the next fetches do not wait: 1 the first
// time, then 3, then 7, up to 63. Then one fetch waits again, since replication may have recovered.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ckpt::agent {

class ReceiveBackoff {
 public:
  // Whether the next fetch waits.
  bool waits() const { return synchronous_ == 0; }
  // Call it at the end of a fetch that waited for GPU replication. `most_received`: GPU replication brought at least
  // half of the piece.
  void waited(bool most_received) {
    constexpr std::uint32_t misses_max = 6;
    misses_ = most_received ? 0 : std::min(misses_ + 1, misses_max);
    synchronous_ = (1u << misses_) - 1;
  }
  // Call it at the end of a fetch that did not wait.
  void fetched_at_once() { synchronous_ -= std::min(synchronous_, 1u); }

 private:
  std::uint32_t misses_ = 0;       // waits in a row in which less than half arrived
  std::uint32_t synchronous_ = 0;  // how many of the next fetches begin at the other node, without waiting
};

}  // namespace ckpt::agent
