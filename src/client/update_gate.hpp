// UpdateGate decides between an update of the tensors and a freeze. At any moment either the training thread may change
// the tensors, or they stay as they are. Both sides change one word by compare-and-swap, so exactly one of them wins.
//
// - updating to resting: snapshot() has ended. The tensors stay as they are until the next update.
// - resting to updating: before_update(). The tensors may change.
// - resting to held: the incarnation is halted, so no update begins. After hold_from(), rest() does this itself, so
//   that no update begins before the thread that called hold_from() looks again.
// - held to resting: this rank is behind, and may do one more update.
// - resting or held to frozen: freeze(). The thread that makes this change captures the tensors, unless they are
//   captured already. Then it calls end().
// - frozen to over: end(). No update begins any more in this incarnation.
// - updating to over: abandon(). The engine is closed within an update. The tensors may be half updated, so nothing is
//   captured.
// - over to updating: reopen(). The engine has rejoined the job, and will restore.
//
// While the gate is held, frozen or over, the training thread does not use the engine's capture. From freeze() to
// end(), only the thread that called freeze() uses it. The gate takes no lock and allocates nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "base/futex.hpp"

namespace ckpt::client {

class UpdateGate {
 public:
  enum State : std::uint32_t { updating, resting, held, frozen, over };

  // Training thread. Returns true if the tensors may change now. Returns false if no update may begin: then call
  // wait(), and try again.
  bool begin_update() {
    std::uint32_t state = resting;
    return state_.compare_exchange_strong(state, updating) || state == updating;
  }
  // Training thread, while updating. The tensors now hold the state of `iteration`. `is_kept`: true if they surely stay
  // so until the next begin_update(), because the training loop has shown that it calls before_update() before it
  // changes them.
  void rest(std::int64_t iteration, bool is_kept) {
    iteration_.store(iteration, std::memory_order_relaxed);
    is_kept_.store(is_kept, std::memory_order_relaxed);
    state_.store(resting);
    // Sequentially consistent: either this thread sees what hold_from() has stored, or the thread that stored it sees
    // that the tensors rest.
    if (iteration >= hold_from_.load()) hold();
  }
  // Training thread, while updating. Call this if the tensors did not change after begin_update().
  void rest_again() { rest(iteration(), is_kept()); }
  // Training thread. No other thread may change the gate meanwhile.
  void reopen() {
    iteration_.store(-1, std::memory_order_relaxed);
    is_kept_.store(false, std::memory_order_relaxed);
    hold_from_.store(INT64_MAX);
    change(over, updating);
  }
  // Any thread. Waits until the gate is no longer in state `seen`, at most until the deadline. It may return early.
  // Changes between updating and resting wake no waiter.
  void wait(State seen, Deadline deadline) const { futex_wait(state_, seen, deadline, FutexScope::process); }

  // Any thread. Each returns true if this call made the change.
  bool hold() { return change(resting, held); }
  bool pass() { return change(held, resting); }
  bool freeze() { return change(held, frozen) || change(resting, frozen); }
  // For the thread that froze the gate. `is_captured`: true if the state of iteration() is captured and sealed.
  void end(bool is_captured) {
    is_captured_.store(is_captured, std::memory_order_relaxed);
    change(frozen, over);
  }
  // Training thread.
  bool abandon() {
    is_captured_.store(false, std::memory_order_relaxed);
    return change(updating, over);
  }
  // From now on a rank that comes to rest at this iteration or a newer one is held at once. A rank that rests already
  // is not: call hold() afterwards.
  void hold_from(std::int64_t iteration) { hold_from_.store(iteration); }

  State state() const { return static_cast<State>(state_.load()); }
  bool is_closed() const { return state() >= held; }
  std::int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }
  bool is_kept() const { return is_kept_.load(std::memory_order_relaxed); }
  bool is_captured() const { return is_captured_.load(std::memory_order_relaxed); }

 private:
  bool change(State from, State to) {
    std::uint32_t state = from;
    if (!state_.compare_exchange_strong(state, to)) return false;
    futex_wake_all(state_, FutexScope::process);
    return true;
  }

  std::atomic<std::uint32_t> state_{updating};  // a State; futex of the training thread
  std::atomic<std::int64_t> iteration_{-1};
  std::atomic<bool> is_kept_{false};
  std::atomic<bool> is_captured_{false};
  std::atomic<std::int64_t> hold_from_{INT64_MAX};
};

}  // namespace ckpt::client
