// RejectedPeers counts the connections that the listener rejects, and reports them to people: one sentence for many
// connections.
//
// Any thread may call seen(). Only the listener's thread calls the other functions.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.hpp"

namespace ckpt::net {

struct UnauthenticatedPeers {
  std::uint64_t count = 0;  // connections that did not prove that they belong to the job
  std::string last;         // the address of the last one, and why it was rejected; "": none was
};

class RejectedPeers {
 public:
  explicit RejectedPeers(std::function<void(const std::string&)> remark) : remark_(std::move(remark)) {}

  // `who` is the address that connected; `why` continues the sentence, e.g. "is of another job".
  void note(const std::string& who, const std::string& why) {
    const std::lock_guard lock(mutex_);
    ++unauthenticated_peers_.count;
    unauthenticated_peers_.last = who + " " + why;
  }

  UnauthenticatedPeers seen() const {
    const std::lock_guard lock(mutex_);
    return unauthenticated_peers_;
  }

  bool has_unreported() const { return seen().count != reported_; }
  // Reports new rejections, at most once a minute. Waits 1 s after the first one, so that many rejections at once are
  // one sentence.
  void notify_if_due(Clock::time_point now) {
    const UnauthenticatedPeers unauthenticated_peers = seen();
    if (unauthenticated_peers.count == reported_) return;
    if (!due_) due_ = std::max(now + gathering, quiet_until_);
    if (now < *due_) return;
    due_.reset();
    quiet_until_ = now + silence;
    if (remark_)
      remark_("turned " +
              std::to_string(unauthenticated_peers.count - std::exchange(reported_, unauthenticated_peers.count)) +
              " connections away at the listener. The last one: " + unauthenticated_peers.last);
  }

 private:
  static constexpr std::chrono::milliseconds gathering{1000};
  static constexpr std::chrono::seconds silence{60};
  const std::function<void(const std::string&)> remark_;
  mutable std::mutex mutex_;
  UnauthenticatedPeers unauthenticated_peers_;
  std::uint64_t reported_ = 0;
  std::optional<Clock::time_point> due_;
  Clock::time_point quiet_until_ = {};
};

}  // namespace ckpt::net
