// SlotDemand says when a rank needs a third slot for its captures.
//
// With two slots, a capture can begin only once the checkpoint before it is committed, because that commit frees a
// slot. If commits often come too late for this, captures need a third slot. A rare late commit is no reason for it.
// Nor is a commit that takes very long: that would fill any number of slots.
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
