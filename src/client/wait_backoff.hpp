// WaitBackoff decides whether a wait is worth its time that may turn out to be in vain. Each wait in vain doubles the
// number of waits that are left out afterwards, up to 15. A wait that was not in vain forgets that.
#pragma once

#include <algorithm>

namespace ckpt::client {

class WaitBackoff {
 public:
  // Asks once for each wait.
  bool may_wait() {
    if (left_out_ == pause_) return true;
    ++left_out_;
    return false;
  }
  void waited(bool in_vain) {
    pause_ = in_vain ? std::min(2 * pause_ + 1, pause_max) : 0;
    left_out_ = 0;
  }

 private:
  static constexpr int pause_max = 15;
  int pause_ = 0;     // so many waits are left out after the last one
  int left_out_ = 0;  // since then
};

}  // namespace ckpt::client
