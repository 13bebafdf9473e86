// SlotDemand says when a rank needs a third slot for its captures.
//
// With two slots, a capture can begin only after the checkpoint before it was committed: that frees a slot. If
// replication is often that late, a third slot lets captures go on meanwhile. A rare delay does not count. Neither does
// a long delay, which would fill any number of slots.
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
