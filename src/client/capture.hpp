// Capture copies one rank's state into the slots that the agent granted, for one iteration. begin() starts the copy.
// release() allows the tensors to change. When the copy is whole, the slots are sealed: in release(), or later on a
// thread of the device. keep_own() copies and seals the private shard alone, and begin_late() the main shard after it.
// prepare_own() copies the private shard for the coming iteration, before its update (docs/jit.md).
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
  // `seals_own_early`: begin() seals the private shard at once, so that it outlives a process that is killed later.
  Capture(device::Device& device, std::uint32_t world_size, bool seals_own_early = false)
      : device_(device), world_size_(world_size), seals_own_early_(seals_own_early) {}
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

  // Sees to it that the private shard of `checkpoint` is sealed in a slot of this rank. Keeps the one that
  // prepare_own() wrote, if the tensors are still the same. Waits for the copy, on a GPU after the work that was
  // enqueued on `stream`. Returns false if there is no slot, the copy did not end, or the piece cannot be sealed now.
  // The grant, if there is one, stays unused. Throws Failure.
  bool keep_own(CheckpointId checkpoint, const RankState& state, device::Stream stream,
                const device::Plan* private_plan = nullptr);
  // For state in host memory. As keep_own(), before the update of `checkpoint`, and beside the piece that keep_own()
  // has kept. Does nothing without a second slot. Seals the piece only if the last keep_own() has found what was
  // prepared for it.
  void prepare_own(CheckpointId checkpoint, const RankState& state);

  // After keep_own(): the main shard may follow. Allocates what begin_late() needs.
  void expect_late(CheckpointId checkpoint, const RankState& state);
  bool may_begin_late() const { return late_.has_value(); }
  // As begin(), for the main shard of that checkpoint. Returns false if the grant does not include the slot with its
  // private shard. Allocates nothing.
  bool begin_late(const arena::Grant& grant);
  // The tensors change: the main shard of that checkpoint is gone.
  void forget_late() { late_.reset(); }

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
    std::uint8_t own_slot;  // of the private shard
    bool is_own_sealed = false;
  };
  struct Late {
    CheckpointId checkpoint;
    const RankState* state;
  };
  // The newest private shard in a slot of this rank.
  struct Own {
    std::uint8_t slot = 0;
    CheckpointId checkpoint;
    std::uint64_t length_bytes = 0;
    std::uint64_t layout_hash = 0;
    bool is_sealed = false;
    bool is_kept = false;  // by keep_own(): it is final
  };
  // The slots for the private shard that the agent has left to this rank now.
  struct OwnSlots {
    std::array<std::uint8_t, 2> slots{};
    std::size_t count = 0;
    bool has(std::uint8_t slot) const { return (count > 0 && slots[0] == slot) || (count > 1 && slots[1] == slot); }
  };
  // The layout text that this engine wrote to each slot. So it writes each once, and not in every iteration.
  using WrittenLayouts = std::array<std::uint64_t, arena::segment_slots_max>;

  void follow_growth(arena::Segment& segment);
  void check_slot(std::size_t segment, std::uint8_t slot);
  OwnSlots own_slots();
  bool write_own(std::uint8_t slot, CheckpointId checkpoint, const RankState& state, device::Stream stream,
                 const device::Plan* private_plan, bool is_to_be_sealed);
  void seal_own(const RankState& state);
  void seal_active_own();
  void over(bool whole);
  bool seal();
  void publish(std::size_t segment, std::uint8_t slot, CheckpointId checkpoint, const PieceState& piece);

  device::Device& device_;
  const std::uint32_t world_size_;
  const bool seals_own_early_;
  std::atomic<bool> is_torn_{false};
  const device::Plan nothing_{{}};
  AgentSession session_;
  std::shared_ptr<Slots> attached_;  // the slots that the device has
  std::optional<Active> active_;
  std::optional<Late> late_;
  std::optional<Own> own_;
  bool own_is_steady_ = false;  // the last update did not change the private shard
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
