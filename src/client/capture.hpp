// Capture copies one rank's state into the slots that the agent granted, for one iteration. begin() starts the copy.
// release() allows the tensors to change. When the copy is whole, the slots are sealed: in release(), or later on a
// thread of the device. seal_small() copies and seals the private shard alone, and begin_late() the main shard after
// it.
//
// The training thread uses it, the thread that begins a DeferredCapture, or the one that has frozen the rank
// (update_gate.hpp); nobody does between a successful release() and the call of `sealed`. For host tensors, begin() and
// release() take no locks, allocate nothing, and make no system call except one futex wake each.
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

// One range per slot: a GPU refuses a copy that touches two registrations.
std::vector<device::Range> ranges_of(const Slots& slots);

class Capture {
 public:
  // `seals_small_early`: begin() seals the private shard at once, so that it outlives a process that is killed later.
  Capture(device::Device& device, std::uint32_t world_size, bool seals_small_early = false)
      : device_(device), world_size_(world_size), seals_small_early_(seals_small_early) {}
  ~Capture() { cancel(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Captures into these slots from now on. Not allowed while active().
  void attach(AgentSession session);
  // While there is no session yet: what the snapshot stores goes to this control page.
  void use(std::shared_ptr<arena::Control> control) { session_.control = std::move(control); }
  // Gives up the slots.
  void detach() { attach({}); }
  // Another incarnation begins, whose session is not known yet. The slots stay attached to the device: the next session
  // usually has the same. Not allowed while active().
  void renew();
  const AgentSession& session() const { return session_; }

  // The agent's unused grant, if there is one. Throws Failure (CKPT_ERR_INTERNAL) for a grant that names no slot.
  std::optional<arena::Grant> unused_grant();
  // A sentence that says why the state does not fit the slots; nothing if it fits.
  std::optional<std::string> misfit(const RankState& state) const;

  // Starts to copy the main shard's parts, and copies the private shard synchronously, as Device::start() does. `state`
  // must not change until the capture is over. `private_plan`: where the private shard is; null: in its tensors.
  void begin(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state, device::Stream stream,
             const device::Plan* private_plan = nullptr);

  // Copies the private shard into its slot of the grant and seals it there, if the device captures late. The grant
  // stays unused. Waits for the copy, on a GPU after the work that was enqueued on `stream`. Throws Failure.
  void seal_small(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state, device::Stream stream,
                  const device::Plan* private_plan = nullptr);
  // True if begin_late() can add the main shard to what was sealed.
  bool can_begin_late() const { return small_.has_value(); }
  // As begin(), for the main shard of the checkpoint of the last seal_small(). Allocates nothing.
  void begin_late();
  // The tensors change: the main shard of that checkpoint is gone.
  void forget_small() { small_.reset(); }

  bool active() const { return active_.has_value(); }
  CheckpointId checkpoint() const { return active_->checkpoint; }
  std::uint64_t length_bytes() const;
  // Where the main shard, or this rank's first part of it, is copied to.
  std::span<const std::byte> main_piece() const;

  // Allows the tensors to change: by work enqueued on `streams` after this call, or by the host. When the copy is
  // whole, the capture seals the slots, tells the agent, and calls `sealed(true)`. If the copy fails later, it gives up
  // and calls `sealed(false)`. Returns false if it failed already or did not end in time. The capture is then still
  // active, and `sealed` is not called.
  using Sealed = std::function<void(bool whole)>;
  bool release(std::span<const device::Stream> streams, std::int64_t timeout_ms, Sealed sealed);
  // Why the newest capture was not sealed although all its bytes were copied; "" if it was sealed or is not copied.
  const std::string& failure() const { return failure_; }
  // Any thread. The tensors may have changed although they must not: what is being captured is not sealed, nor is
  // anything later.
  void tear() { is_torn_.store(true); }
  // Gives up the active capture. The grant stays unused.
  void cancel();

 private:
  struct Active {
    arena::Grant grant;
    CheckpointId checkpoint;
    const RankState* state;
    bool is_small_sealed = false;
  };
  // The layout text that this engine wrote to each slot. So it writes each once, and not in every iteration.
  using WrittenLayouts = std::array<std::uint64_t, arena::segment_slots_max>;

  void follow_growth(arena::Segment& segment);
  void reserve_late(const Active& of);
  void over(bool whole);
  bool seal();
  void publish_small(Active& of);
  void publish(arena::WritableSlot slot, const Active& of, const PieceState& piece,
               std::uint64_t& written_layout) const;

  device::Device& device_;
  const std::uint32_t world_size_;
  const bool seals_small_early_;
  std::atomic<bool> is_torn_{false};
  AgentSession session_;
  std::shared_ptr<Slots> attached_;  // the slots that the device has
  std::optional<Active> active_;
  std::optional<Active> small_;  // of it, the private shard is sealed and nothing else
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
  // Any thread. Says that sealing has ended, and wakes the threads in wait(). The caller must not use the capture after
  // this call, because the training thread may now change it.
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
