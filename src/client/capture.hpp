// Capture copies one rank's state into the slots that the agent granted, for one iteration. begin() starts the copy.
// release() allows the tensors to change. When the copy is whole, the slots are sealed: in release(), or later on a
// thread of the device.
//
// The training thread uses it, or the thread that begins a DeferredCapture; nobody does between a successful release()
// and the call of `sealed`. For host tensors, begin() and release() take no locks, allocate nothing, and make no system
// call except one futex wake each.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "base/futex.hpp"
#include "client/agent_session.hpp"
#include "client/tensor_registry.hpp"
#include "core/checkpoint_id.hpp"
#include "device/device.hpp"

namespace ckpt::client {

class Capture {
 public:
  Capture(device::Device& device, std::uint32_t world_size) : device_(device), world_size_(world_size) {}
  ~Capture() { cancel(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Captures into these slots from now on. Not allowed while active().
  void attach(AgentSession session);
  // Gives up the slots.
  void detach() { attach({}); }
  const AgentSession& session() const { return session_; }

  // The agent's unused grant, if there is one. Throws Failure (CKPT_ERR_INTERNAL) for a grant that names no slot.
  std::optional<arena::Grant> unused_grant();
  // A sentence that says why the state does not fit the slots; nothing if it fits.
  std::optional<std::string> misfit(const RankState& state) const;

  // Starts to copy the main shard's parts, and copies the private shard synchronously, as Device::start() does. `state`
  // must not change until the capture is over. `private_plan`: where the private shard is; null: in its tensors.
  void begin(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state, device::Stream stream,
             const device::Plan* private_plan = nullptr);
  bool active() const { return active_.has_value(); }
  CheckpointId checkpoint() const { return active_->checkpoint; }
  std::uint64_t length_bytes() const;
  // Where the main shard, or this rank's first part of it, is copied to.
  std::span<const std::byte> main_piece() const;

  // Allows the tensors to change: by work enqueued on `streams` after this call, or by the host. When the copy is
  // whole, the capture seals the slots, tells the agent, and calls `sealed(true)`. If the copy fails later, it gives up
  // and calls `sealed(false)`. Returns false if it failed already or the deadline passed. The capture is then still
  // active, and `sealed` is not called.
  using Sealed = std::function<void(bool whole)>;
  bool release(std::span<const device::Stream> streams, Deadline deadline, Sealed sealed);
  // Why the newest capture was not sealed although all its bytes were copied; "" if it was sealed or is not copied.
  const std::string& failure() const { return failure_; }
  // Gives up the active capture. The grant stays unused.
  void cancel();

 private:
  struct Active {
    arena::Grant grant;
    CheckpointId checkpoint;
    const RankState* state;
  };
  // The layout text that this engine wrote to each slot. So it writes each once, and not in every iteration.
  using WrittenLayouts = std::array<std::uint64_t, arena::segment_slots_max>;

  void follow_growth(arena::Segment& segment);
  void over(bool whole);
  bool seal();
  void publish(arena::WritableSlot slot, const PieceState& piece, std::uint64_t& written_layout) const;

  device::Device& device_;
  const std::uint32_t world_size_;
  AgentSession session_;
  std::optional<Active> active_;
  Sealed sealed_;
  std::string failure_;
  std::array<WrittenLayouts, core::captures_max> written_layouts_{};  // by segment
};

// Says whether a thread of the device is still sealing a capture. The training thread must not touch the capture
// before that has ended.
class Sealing {
 public:
  // Training thread. Call begin() before the capture is released, and none() if it was not released after all.
  void begin() { under_way_.store(1, std::memory_order_relaxed); }
  void none() { under_way_.store(0, std::memory_order_relaxed); }
  // Any thread. This is the last thing that thread does with the capture.
  void end() {
    // Sequentially consistent, as in wait(): either the waiter sees the end, or this thread sees the waiter.
    under_way_.store(0);
    if (waiters_.load() != 0) futex_wake_all(under_way_, FutexScope::process);
  }

  bool under_way() const { return under_way_.load(std::memory_order_acquire) != 0; }
  // Waits until sealing has ended. False if the deadline passed first.
  bool wait(Deadline deadline) const {
    waiters_.fetch_add(1);
    while (under_way_.load() != 0 && !deadline.passed()) futex_wait(under_way_, 1, deadline, FutexScope::process);
    waiters_.fetch_sub(1);
    return !under_way();
  }

 private:
  std::atomic<std::uint32_t> under_way_{0};  // futex
  mutable std::atomic<std::uint32_t> waiters_{0};
};

}  // namespace ckpt::client
