// AgentSession is what the agent has given this engine: the control page, and the slots once they are reserved. After a
// restart, the agent gives the engine a new session. CommHooks records in the control page when training communicates.
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

// One segment for each part of the main shard that the rank captures, in order, then one for its private shard.
using Slots = std::vector<arena::Segment>;

// Never changes, so two threads share it: the training thread, which captures, and the watcher, which reads the control
// page.
struct AgentSession {
  std::shared_ptr<arena::Control> control;
  std::shared_ptr<Slots> slots;  // null: not reserved yet
};

// Records when training communicates, in the control file of the engine's session: the file that begins with the
// control page. Any thread may call the hooks at any time. They write nothing before follow().
//
// An atomic pointer leads to the file, so hooks need no lock. A restarted agent goes on with the old file. After a
// rejoin there is a new one, and the old one stays mapped as long as a hook may be using it.
class CommHooks {
 public:
  // From now on hooks write to this file. Called by one thread at a time.
  void follow(const std::shared_ptr<arena::Control>& control) {
    if (words_.load() != nullptr && files_.back()->same_as(*control)) return;
    files_.push_back(control);
    words_.store(&control->comm());
    forget_unused();
  }
  // Hooks write nothing until the next follow(). Called by one thread at a time.
  void leave() {
    words_.store(nullptr);
    forget_unused();
  }

  // Any thread. Takes no locks, allocates nothing and makes no system calls. Channels are below
  // arena::comm_channels_max.
  void begin(std::uint32_t channel) const {
    if (const Use words(*this); words) arena::CommWriter(*words).begin(channel, Clock::now());
  }
  // Records the end of a communication. Returns false, and records nothing, if none is under way on this channel.
  bool end(std::uint32_t channel) const {
    const Use words(*this);
    return !words || arena::CommWriter(*words).end(channel, Clock::now());
  }
  void bubble_begin() const {
    if (const Use words(*this); words) arena::CommWriter(*words).bubble_begin(Clock::now());
  }
  void bubble_end() const {
    if (const Use words(*this); words) arena::CommWriter(*words).bubble_end(Clock::now());
  }
  void update(Clock::time_point now) const {
    if (const Use words(*this); words) arena::CommWriter(*words).update(now);
  }
  // One thread at a time.
  void pause(std::string_view name) const {
    if (const Use words(*this); words) arena::CommWriter(*words).pause(name);
  }
  // False if every pause has ended.
  bool resume() const {
    const Use words(*this);
    return !words || arena::CommWriter(*words).resume();
  }
  void offered(std::int64_t iteration) const {
    if (const Use words(*this); words) arena::CommWriter(*words).offered(iteration);
  }
  void iteration(Clock::time_point now) const {
    if (const Use words(*this); words) arena::CommWriter(*words).iteration(now);
  }

 private:
  // Keeps the file mapped during one hook, and gives access to its CommWords. False if hooks write nothing now.
  class Use {
   public:
    explicit Use(const CommHooks& hooks) : users_(hooks.users_) {
      users_.fetch_add(1);
      words_ = hooks.words_.load();
    }
    ~Use() { users_.fetch_sub(1, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const { return words_ != nullptr; }
    arena::CommWords& operator*() const { return *words_; }

   private:
    std::atomic<std::uint32_t>& users_;
    arena::CommWords* words_;
  };

  // Unmaps the files that hooks no longer use, unless a hook is under way. All atomics here are sequentially
  // consistent. So a hook that is not counted yet will see the new pointer.
  void forget_unused() {
    const std::size_t used = words_.load() == nullptr ? 0 : 1;
    if (users_.load() == 0 && files_.size() > used)
      files_.erase(files_.begin(), files_.end() - static_cast<std::ptrdiff_t>(used));
  }

  std::vector<std::shared_ptr<arena::Control>> files_;
  std::atomic<arena::CommWords*> words_{nullptr};
  mutable std::atomic<std::uint32_t> users_{0};  // hooks under way
};

}  // namespace ckpt::client
