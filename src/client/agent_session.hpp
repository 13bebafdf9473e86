// AgentSession is what the agent has given this engine: the control page, and the slots once they are reserved. After a
// restart, the agent gives the engine a new session. CommHooks records the training's communication there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "arena/segment.hpp"

namespace ckpt::client {

// One segment for each part of the rank's share, in order, then one for its private shard.
using Slots = std::vector<arena::Segment>;

// Never changes, so two threads share it: the training thread, which captures, and the watcher, which reads the control
// page.
struct AgentSession {
  std::shared_ptr<arena::Control> control;
  std::shared_ptr<Slots> slots;  // null: not reserved yet
};

// Records when training communicates, in the control file of the engine's session. Any thread may call the hooks at any
// time. They write nothing before follow().
//
// An atomic pointer leads to the file, so hooks need no lock. A file stays mapped while the engine lives, so a late
// hook does no harm. A rank normally has one control file, because a restarted agent goes on with the old one.
class CommHooks {
 public:
  // From now on hooks write to this file. Called by one thread at a time.
  void follow(const std::shared_ptr<arena::Control>& control) {
    if (!files_.empty() && files_.back()->same_as(*control)) return;
    files_.push_back(control);
    words_.store(&control->comm(), std::memory_order_release);
  }

  // Any thread. Takes no locks, allocates nothing and makes no system calls. Channels are below
  // arena::comm_channels_max.
  void begin(std::uint32_t channel) const {
    if (arena::CommWords* words = words_.load(std::memory_order_acquire))
      arena::CommWriter(*words).begin(channel, Clock::now());
  }
  // Records the end of a communication. Returns false, and records nothing, if none is under way on this channel.
  bool end(std::uint32_t channel) const {
    arena::CommWords* words = words_.load(std::memory_order_acquire);
    return words == nullptr || arena::CommWriter(*words).end(channel, Clock::now());
  }
  // One thread at a time.
  void pause(std::string_view name) const {
    if (arena::CommWords* words = words_.load(std::memory_order_acquire)) arena::CommWriter(*words).pause(name);
  }
  // False if every pause has ended.
  bool resume() const {
    arena::CommWords* words = words_.load(std::memory_order_acquire);
    return words == nullptr || arena::CommWriter(*words).resume();
  }
  void offered(std::int64_t iteration) const {
    if (arena::CommWords* words = words_.load(std::memory_order_acquire)) arena::CommWriter(*words).offered(iteration);
  }
  void iteration(Clock::time_point now) const {
    if (arena::CommWords* words = words_.load(std::memory_order_acquire)) arena::CommWriter(*words).iteration(now);
  }

 private:
  std::vector<std::shared_ptr<arena::Control>> files_;
  std::atomic<arena::CommWords*> words_{nullptr};
};

}  // namespace ckpt::client
