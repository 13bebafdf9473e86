// Who was turned away at the door, counted, and told to people now and then: one sentence for many of them.
//
// seen() is thread-safe; the rest belongs to the door's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.hpp"

namespace ckpt::net {

struct Strangers {
  std::uint64_t count = 0;  // connections that did not prove to be of the job
  std::string last;         // who was the last, and why it was turned away
};

class TurnedAway {
 public:
  explicit TurnedAway(std::function<void(const std::string&)> remark) : remark_(std::move(remark)) {}

  void note(const std::string& who, const std::string& why) {
    const std::lock_guard lock(mutex_);
    ++strangers_.count;
    strangers_.last = who + " " + why;
  }

  Strangers seen() const {
    const std::lock_guard lock(mutex_);
    return strangers_;
  }

  bool has_untold() const { return seen().count != told_; }
  // Says what there is to say: some time after the first one, so that those who come in a crowd are one remark, and not
  // again for a while.
  void tell_if_due(Clock::time_point now) {
    const Strangers strangers = seen();
    if (strangers.count == told_) return;
    if (!due_) due_ = std::max(now + gathering, quiet_until_);
    if (now < *due_) return;
    due_.reset();
    quiet_until_ = now + silence;
    if (remark_)
      remark_("turned " + std::to_string(strangers.count - std::exchange(told_, strangers.count)) +
              " connections away at the door; the last one, " + strangers.last);
  }

 private:
  static constexpr std::chrono::milliseconds gathering{1000};
  static constexpr std::chrono::seconds silence{60};
  const std::function<void(const std::string&)> remark_;
  mutable std::mutex mutex_;
  Strangers strangers_;
  std::uint64_t told_ = 0;
  std::optional<Clock::time_point> due_;
  Clock::time_point quiet_until_ = {};
};

}  // namespace ckpt::net
