// Capture copies one rank's state into the slots that the agent granted, for one iteration. begin() starts the copy.
// release() allows the tensors to change. When the copy is whole, the slots are sealed: in release(), or later on a
// thread of the device. keep_own() copies and seals the private shard alone, and begin_late() the main shard after it.
// prepare_own() copies the private shard for the coming iteration, before its update (docs/jit.md).
//
// One thread at a time may use it: the training thread, the thread that begins a DeferredCapture, or the thread that
// has frozen the rank (update_gate.hpp). After a successful release() no thread may, until the callback that release()
// was given is called. For host tensors, begin() and release() take no locks, allocate nothing, and make no system call
// except one futex wake each.
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

// Returns one range for each slot. The device pins each range separately, because the CUDA driver refuses a copy that
// touches two pinned ranges.
std::vector<device::Range> ranges_of(const Slots& slots);

class Capture {
 public:
  // `seals_own_early`: begin() seals the private shard at once, so that it outlives a process that is killed later.
  // `has_records`: gradient records are captured, so slots need room for them.
  Capture(device::Device& device, std::uint32_t world_size, bool seals_own_early = false, bool has_records = false)
      : device_(device), world_size_(world_size), seals_own_early_(seals_own_early), has_records_(has_records) {}
  ~Capture() { cancel(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Captures into these slots from now on. Not allowed while active().
  void attach(AgentSession session);
  // Sets the control page alone. Use it while there is no session yet.
  void use(std::shared_ptr<arena::Control> control) { session_.control = std::move(control); }
  // Gives up the slots.
  void detach() { attach({}); }
  // Call this when another incarnation begins and its session is not known yet. The slots stay attached to the device,
  // because the next session usually has the same ones. Not allowed while active().
  void renew();
  const AgentSession& session() const { return session_; }

  // Returns the agent's grant if it is unused. Throws Failure (CKPT_ERR_INTERNAL) if the grant names a slot that does
  // not exist.
  std::optional<arena::Grant> unused_grant();
  // Returns a sentence that says why the state does not fit the slots, or nothing if it fits.
  std::optional<std::string> misfit(const RankState& state) const;

  // Starts to copy the main shard's parts as Device::start() copies overlapped pieces, and the private shard as it
  // copies `synchronous`. `state` must not change until the capture is over. `private_plan` says where the bytes of the
  // private shard are. If it is null, they are in the private tensors.
  void begin(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state, device::Stream stream,
             const device::Plan* private_plan = nullptr);

  // Sets the gradient record that the next begin() also captures. If the slot has no room for it, it is left out. Null:
  // there is none. The plan must stay in place until the capture is over.
  void with_record(const device::Plan* record) { record_ = record; }

  // Makes sure that the private shard of `checkpoint` is sealed in a slot of this rank. Keeps the piece that
  // prepare_own() wrote, if the tensors have not changed since. Waits for the copy, on a GPU after the work that was
  // enqueued on `stream`. Returns false if there is no slot, the copy did not end, or the piece cannot be sealed now.
  // The grant, if there is one, stays unused. Throws Failure.
  bool keep_own(CheckpointId checkpoint, const RankState& state, device::Stream stream,
                const device::Plan* private_plan = nullptr);
  // Writes the private shard of `checkpoint` before that checkpoint's update begins. So the piece is there if this rank
  // dies within the update, and other ranks may have the main shard. Uses another slot than the piece that keep_own()
  // has kept. Does nothing if there is no other slot. keep_own() compares the piece with the tensors after the update.
  // If the last update did not change the private shard, prepare_own() seals the piece; otherwise keep_own() does. For
  // state in host memory only.
  void prepare_own(CheckpointId checkpoint, const RankState& state);

  // Call this after keep_own() if begin_late() may follow. Allocates what begin_late() needs.
  void expect_late(CheckpointId checkpoint, const RankState& state);
  bool may_begin_late() const { return late_.has_value(); }
  // Does what begin() does, for the main shard of the checkpoint that expect_late() named. Returns false if the grant
  // does not include the slot in which that checkpoint's private shard is. Allocates nothing.
  bool begin_late(const arena::Grant& grant);
  // Call this when the tensors change, because begin_late() can then no longer capture that checkpoint.
  void forget_late() { late_.reset(); }

  bool active() const { return active_.has_value(); }
  CheckpointId checkpoint() const { return active_->checkpoint; }
  std::uint64_t length_bytes() const;
  // Returns the memory to which the main shard, or this rank's first part of it, is copied.
  std::span<const std::byte> main_piece() const;

  // Allows the tensors to change: by work enqueued on `streams` after this call, or by the host. When the copy is
  // whole, the capture seals the slots, tells the agent, and calls `sealed(true)`. If the copy fails later, it gives up
  // and calls `sealed(false)`. Returns false if it failed already or did not end in time. The capture is then still
  // active, and `sealed` is not called.
  using Sealed = std::function<void(bool whole)>;
  bool release(std::span<const device::Stream> streams, std::int64_t timeout_ms, Sealed sealed);
  // Why the newest capture was not sealed although all its bytes were copied. "" if it was sealed, or if its copy has
  // not ended or has failed.
  const std::string& failure() const { return failure_; }
  // Any thread. Call this if the tensors may have changed although they must not. Until renew(), no main shard is
  // sealed any more.
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
    std::uint64_t record_bytes = 0;  // of the gradient record that is captured, too
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
  // The slots for the private shard that this rank may write now: those of an unused grant, or the one that remains of
  // the last grant.
  struct OwnSlots {
    std::array<std::uint8_t, 2> slots{};
    std::size_t count = 0;
    bool has(std::uint8_t slot) const { return (count > 0 && slots[0] == slot) || (count > 1 && slots[1] == slot); }
  };
  // The hash of the layout text that this engine wrote to each slot of a segment. So it writes the text once, and not
  // in every iteration.
  using WrittenLayouts = std::array<std::uint64_t, arena::segment_slots_max>;

  void follow_growth(arena::Segment& segment);
  void check_slot(std::size_t segment, std::uint8_t slot);
  OwnSlots own_slots();
  bool write_own(std::uint8_t slot, CheckpointId checkpoint, const RankState& state, device::Stream stream,
                 const device::Plan* private_plan, bool is_to_be_sealed);
  void seal_own(const RankState& state);
  void seal_active_own();
  std::optional<device::Device::Copy> record_copy(const arena::Grant& grant, const RankState& state);
  void over(bool whole);
  bool seal();
  void publish(std::size_t segment, std::uint8_t slot, CheckpointId checkpoint, const PieceState& piece);

  device::Device& device_;
  const std::uint32_t world_size_;
  const bool seals_own_early_;
  const bool has_records_;
  std::atomic<bool> is_torn_{false};
  const device::Plan nothing_{{}};
  AgentSession session_;
  std::shared_ptr<Slots> attached_;  // the slots last given to Device::attach()
  std::optional<Active> active_;
  const device::Plan* record_ = nullptr;  // for the next begin()
  std::optional<Late> late_;
  std::optional<Own> own_;
  bool own_is_steady_ = false;  // the last update did not change the private shard
  Sealed sealed_;
  std::string failure_;
  std::array<WrittenLayouts, core::captures_max> written_layouts_{};  // by segment
};

// Says whether a thread of the device is still sealing a capture. While one is, the training thread must not touch the
// capture.
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
