// Whether it is worth waiting for what is to arrive from one member: each time that most of a piece did not, twice as
// many of the next ones are fetched at once, up to 63. Then it is tried again, for a replication may come to itself.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ckpt::agent {

class ReceiveBackoff {
 public:
  bool waits() const { return synchronous_ == 0; }
  // Of a fetch that waited: whether it got most of the piece so.
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
