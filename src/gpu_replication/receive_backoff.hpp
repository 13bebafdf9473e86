// Decides whether a fetch waits for bytes that should arrive from one member by GPU replication. Each time most of a
// piece did not arrive, twice as many of the following pieces are fetched at once, up to 63. Then a fetch waits again,
// since replication may have recovered.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ckpt::agent {

class ReceiveBackoff {
 public:
  bool waits() const { return synchronous_ == 0; }
  // Reports a fetch that waited: `most_received` says whether at least half of the piece arrived.
  void waited(bool most_received) {
    constexpr std::uint32_t misses_max = 6;
    misses_ = most_received ? 0 : std::min(misses_ + 1, misses_max);
    synchronous_ = (1u << misses_) - 1;
  }
  void fetched_at_once() { synchronous_ -= std::min(synchronous_, 1u); }

 private:
  std::uint32_t misses_ = 0;  // in a row
  std::uint32_t synchronous_ = 0;
};

}  // namespace ckpt::agent
