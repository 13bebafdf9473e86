// Where the hooks around training communication write to: the control file of the session that the engine has with its
// agent (arena/comm_log.hpp).
//
// A hook may be called by any thread at any time, so the way to the file is one atomic pointer, and a file stays mapped
// for the life of the engine. There are as many as the rank had control files, which is one: an agent that is restarted
// takes over the file that is there, and with it what is under way. Before follow(), nothing is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena/comm_log.hpp"
#include "arena/control.hpp"

namespace ckpt::engine {

class CommHooks {
 public:
  // From now on hooks write to this file. One thread at a time.
  void follow(const std::shared_ptr<arena::Control>& control) {
    if (!files_.empty() && files_.back()->same_as(*control)) return;
    files_.push_back(control);
    words_.store(&control->comm(), std::memory_order_release);
  }

  // Any thread; without locks, allocations and system calls. Channels are below arena::comm_channels_max.
  void begin(std::uint32_t channel) const {
    if (arena::CommWords* words = words_.load(std::memory_order_acquire))
      arena::CommWriter(*words).begin(channel, Clock::now());
  }
  // False where all that has begun on this channel has ended.
  bool end(std::uint32_t channel) const {
    arena::CommWords* words = words_.load(std::memory_order_acquire);
    return words == nullptr || arena::CommWriter(*words).end(channel, Clock::now());
  }
  void iteration(Clock::time_point now) const {
    if (arena::CommWords* words = words_.load(std::memory_order_acquire)) arena::CommWriter(*words).iteration(now);
  }

 private:
  std::vector<std::shared_ptr<arena::Control>> files_;
  std::atomic<arena::CommWords*> words_{nullptr};
};

}  // namespace ckpt::engine
