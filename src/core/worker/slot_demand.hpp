// SlotDemand tells whether a rank needs one more slot of its own, because its captures wait for replication.
//
// With two slots, a capture needs the commit of the one before it: only then is a slot free. A third slot lets it go on
// while that one is still being replicated. Single hiccups do not count, nor does a long wait, which no slot shortens.
#pragma once

#include <bit>
#include <cstdint>

namespace ckpt::core {

class SlotDemand {
 public:
  // An iteration was offered, and no slot was free.
  void found_none() { is_late_ = true; }
  void captured() {
    late_ = late_ << 1 | static_cast<std::uint32_t>(is_late_);
    is_late_ = false;
  }
  bool wants_more() const { return std::popcount(late_) >= late_captures; }

 private:
  static constexpr int late_captures = 8;  // of the last 32
  std::uint32_t late_ = 0;                 // a bit for each capture: an iteration before it found no free slot
  bool is_late_ = false;
};

}  // namespace ckpt::core
