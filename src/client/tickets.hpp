// Tickets knows how far each snapshot is (captured, committed, on storage), and how many got that far. The training
// thread and the agent link's watcher write; any thread may read or wait. It takes no lock. Waiters sleep on a futex,
// and a writer makes a system call only if somebody waits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "ckptengine/ckptengine.h"
#include "core/checkpoint_id.hpp"

namespace ckpt::client {

class Tickets {
 public:
  // Training thread. For each iteration, call taken() and later captured() or discarded(). If there is no capture, call
  // refused() instead. If the capture has to wait for a slot, call waiting() first. Then the thread that begins the
  // capture calls taken(), which may be another thread.
  void waiting(std::int64_t iteration, Clock::time_point called_at);
  void taken(std::int64_t iteration, Clock::time_point called_at);
  void captured(std::int64_t iteration, std::uint64_t bytes, double capture_ms);
  void discarded(std::int64_t iteration);
  void refused(std::int64_t iteration, ckpt_status why);  // skipped, discarded while it waited, or failed
  void stalled(double ms) { stall_ms_.store(ms, std::memory_order_relaxed); }
  void restored(std::int64_t iteration);  // this iteration is committed, and training continues after it
  // Forgets all iterations, and ends all calls of wait(). Call this when another incarnation begins. Other threads may
  // read meanwhile, but not write.
  void forget();

  // Watcher. Repeated calls do no harm.
  void committed(CheckpointId checkpoint, Clock::time_point now);
  void durable(std::int64_t iteration);
  void superseded();

  // Any thread.
  ckpt_stage stage(std::int64_t iteration) const;
  // Returns CKPT_OK once `iteration` or a newer one has reached `stage`, CKPT_ERR_TIMEOUT, or the reason why it never
  // will.
  ckpt_status wait(std::int64_t iteration, ckpt_stage stage, Deadline deadline) const;
  std::int64_t newest_captured() const { return newest_captured_.load(std::memory_order_acquire); }
  ckpt_stats_t stats() const;

 private:
  enum class State : std::uint32_t { none, waiting, capturing, captured, discarded, refused };
  struct Entry {
    std::atomic<std::int64_t> iteration{-1};
    std::atomic<State> state{State::none};
    std::atomic<ckpt_status> why{CKPT_OK};
    std::atomic<Clock::rep> called_at{0};
  };
  // How many snapshots are remembered one by one. For older ones only the commit is known.
  static constexpr std::size_t remembered = 256;

  Entry& entry(std::int64_t iteration) { return entries_[static_cast<std::size_t>(iteration) % remembered]; }
  const Entry& entry(std::int64_t iteration) const {
    return entries_[static_cast<std::size_t>(iteration) % remembered];
  }
  void open(std::int64_t iteration, State state, ckpt_status why, Clock::rep called_at);
  State state_of(std::int64_t iteration) const;
  bool reached(std::int64_t iteration, ckpt_stage stage) const;
  ckpt_status hopeless(std::int64_t iteration) const;
  void announce();

  std::array<Entry, remembered> entries_;
  std::atomic<std::int64_t> newest_captured_{-1};
  std::atomic<std::int64_t> newest_committed_{-1};
  std::atomic<std::int64_t> newest_durable_{-1};
  std::atomic<bool> superseded_{false};
  std::atomic<std::uint32_t> incarnations_{0};  // +1 with each forget()
  std::atomic<std::uint64_t> taken_{0}, skipped_{0}, discarded_{0}, commits_{0}, bytes_{0};
  std::atomic<double> stall_ms_{0}, capture_ms_{0}, commit_ms_{0};
  std::atomic<std::uint32_t> doorbell_{0};  // futex: +1 after any change
  mutable std::atomic<std::uint32_t> waiters_{0};
};

}  // namespace ckpt::client
