// Whether it is worth waiting for what is to land from one member: each time that most of a piece did not, twice as
// many of the next ones are fetched at once, up to 63. Then it is tried again, for a path may come to itself.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ckpt::agent {

class LandingPatience {
 public:
  bool waits() const { return at_once_ == 0; }
  // Of a fetch that waited: whether it got most of the piece so.
  void waited(bool most_landed) {
    constexpr std::uint32_t misses_max = 6;
    misses_ = most_landed ? 0 : std::min(misses_ + 1, misses_max);
    at_once_ = (1u << misses_) - 1;
  }
  void fetched_at_once() { at_once_ -= std::min(at_once_, 1u); }

 private:
  std::uint32_t misses_ = 0;  // in a row
  std::uint32_t at_once_ = 0;
};

}  // namespace ckpt::agent
