// LayeredCopy lets tensors be copied in layers: first in bubbles, in which training waits for other ranks, then beside
// computation, and what is left in before_update(). It learns from the rank's own communication log when there are
// bubbles and how long they last. Until it knows that, or if there are none, captures copy at once.
//
// Tensors in host memory are copied by copy threads, and a bubble is a wait of the training thread. Tensors on a GPU
// are copied by the GPU, and bubbles are those of the GPU's timeline (GpuBubbles). All times of a capture count from
// the moment in which the GPU has done what training enqueued before snapshot().
//
// If a plan was wrong, so that before_update() had to wait for what it had put off, the next captures copy at once.
//
// began_iteration(), bubble_begin() and bubble_end() are for the training thread. They take no lock, allocate nothing,
// and make no system call except a futex wake if a copy thread waits for that bubble. The thread that begins or
// ends a capture calls begin(), begin_hurried() or end(). Any thread may call hurry() and copied_bytes(). The rest is
// for copy threads, and for those that enqueue copies of a GPU.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "client/gpu_comm.hpp"
#include "device/copy_pace.hpp"
#include "schedule/copy_pacer.hpp"
#include "schedule/device_profile.hpp"

namespace ckpt::client {

class LayeredCopy : public device::CopyPace {
 public:
  struct Settings {
    unsigned threads = 1;                   // copy threads
    bool follows_plan = true;               // false: captures copy at once, and are only counted
    std::uint32_t profile_iterations = 20;  // from which a profile is learned
  };
  explicit LayeredCopy(const Settings& settings) : settings_(settings) {}

  // snapshot() was called. Returns true if this ended a bubble: a forgotten bubble_end() costs one iteration, not all
  // that follow.
  bool began_iteration(Clock::time_point now);
  // Bubbles may be nested; the outer one counts. Returns true if a bubble began.
  bool bubble_begin();
  // Returns true if a bubble ended, false if an outer one goes on, and nothing if there was none.
  std::optional<bool> bubble_end();

  // Call this before Device::start(). No capture is under way. `control` has the rank's log. `gpu`: the tensors are on
  // a GPU with such a timeline.
  void begin(std::shared_ptr<arena::Control> control, std::optional<GpuBubbles> gpu = std::nullopt);
  // The same for a capture that must not wait: it copies at once, and counts as copied in before_update().
  void begin_hurried();
  // Call this when a copy has ended and is whole. Writes to the log when copy threads have copied.
  void end();

  Turn await_turn(std::size_t left) override;
  bool may_enqueue(const Enqueued& capture) override;
  bool holds_back(std::size_t left) override;
  unsigned layer_now(bool is_awaited) override;
  void copied(unsigned layer, std::size_t leaves, Clock::time_point begin, Clock::time_point end) override;
  void hurry() override;

  // Sums since construction, in whole leaves.
  arena::CopiedBytes copied_bytes() const;

 private:
  enum Layer : unsigned { in_bubbles, beside_computation, in_update, layers };
  static constexpr std::uint32_t in_bubble = 1, hurrying = 2, one_bubble = 4;  // of state_

  void judge_last();
  void learn();
  void plan(std::uint32_t state, std::size_t left);
  std::optional<Turn> turn_now(std::uint32_t state, std::size_t left, double& wait_s);
  Turn unpaced(std::size_t left, Layer layer) const;
  schedule::DeviceNow now(std::uint32_t state) const;
  bool is_in_bubble() const;
  double bytes_per_s() const;
  void wait(std::uint32_t seen, double wait_s);

  const Settings settings_;
  std::atomic<std::uint32_t> depth_{0};  // nested bubbles
  // in_bubble + hurrying + one_bubble for each bubble that has begun since snapshot(). Futex of the copy threads.
  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> waiters_{0};
  std::atomic<std::uint32_t> wake_from_{0};  // number of the first bubble for which waiting threads want to wake up
  std::atomic<Clock::rep> snapshot_at_{0};

  // begin() writes what follows while no thread copies; then copy threads use it under the mutex.
  std::mutex mutex_;
  std::shared_ptr<arena::Control> control_;
  std::optional<arena::CommReader> log_;  // of control_
  std::optional<GpuBubbles> gpu_;         // of the capture; none: tensors are in host memory, or it copies at once
  std::optional<Clock::time_point> gpu_came_at_;
  std::optional<schedule::DeviceProfiler> profiler_;
  schedule::CopyPacer pacer_;
  std::vector<arena::CommEvent> events_;  // kept to reuse its memory
  bool has_begun_ = false;                // a thread had a turn in this capture
  bool is_planned_ = false;               // this capture follows a plan
  bool is_late_ = false;                  // before_update() had to wait for what the plan had put off
  bool is_over_ = false;                  // end() was called
  bool is_at_rest_ = false;               // training waits for all of this capture, or has ended
  std::uint32_t pause_ = 0;               // so many captures will copy at once, because a plan was wrong
  std::uint32_t next_pause_ = 1;
  std::uint32_t in_time_ = 0;  // captures in a row that followed a plan and ended in time
  double bytes_per_s_ = 0;     // of one thread, or of the GPU; 0: not known
  double busy_s_ = 0;          // of all threads or of the GPU, in this capture
  double busy_bytes_ = 0;      // that they copied meanwhile
  // When this capture has copied, for `ckptctl trace`.
  struct Burst {
    Clock::time_point begin, end;
  };
  void add_burst(const Burst& burst);
  void append(const Burst& burst);
  void forget_bursts();
  static constexpr std::size_t bursts_max = 64;
  std::array<Burst, bursts_max> bursts_{};
  std::size_t burst_count_ = 0;
  Clock::duration shortest_pause_{};  // between two bursts; a shorter one is left out

  std::array<std::atomic<std::uint64_t>, layers> bytes_{};
  std::atomic<std::uint64_t> layered_{0}, late_{0};
};

}  // namespace ckpt::client
