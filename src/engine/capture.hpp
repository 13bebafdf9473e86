// One rank's capture of one iteration into the slots that the agent granted: begun in snapshot(), released in
// before_update(), and sealed when the copy is whole: in before_update() too, or later on a thread of the device.
//
// Used by the training thread; from a release() that returned true until `sealed` is called, by nobody. Host tensors:
// no system calls but one futex wake in each, no locks, no allocation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "device/device.hpp"
#include "engine/agent_session.hpp"
#include "engine/tensor_registry.hpp"
#include "protocol/checkpoint_id.hpp"

namespace ckpt::engine {

class Capture {
 public:
  Capture(device::Device& device, std::uint32_t world_size) : device_(device), world_size_(world_size) {}
  ~Capture() { cancel(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Captures into these slots from now on. Not while active().
  void attach(AgentSession session);
  // Lets go of the slots.
  void detach() { attach({}); }
  const AgentSession& session() const { return session_; }

  // The agent's leave to capture, if there is one that was not used. Throws Failure (CKPT_ERR_INTERNAL) for one that
  // names no slot.
  std::optional<arena::Grant> unused_grant() const;
  // Whether the state fits the slots; a sentence if not.
  std::optional<std::string> misfit(const RankState& state) const;

  // Starts to copy the main shard's parts and copies the private one, as Device::start() does. `state` stays unchanged
  // until the capture is over.
  void begin(const arena::Grant& grant, CheckpointId checkpoint, const RankState& state, device::Stream stream);
  bool active() const { return active_.has_value(); }
  CheckpointId checkpoint() const { return active_->checkpoint; }
  std::uint64_t length_bytes() const;
  // Where the main shard is copied to, or this rank's first part of it.
  std::span<const std::byte> main_piece() const;

  // What is enqueued on `streams` next, or done by the host, may change the tensors. When the copy is whole the slots
  // are sealed, the agent is told, and `sealed(true)` is called; `sealed(false)` where it failed, and the capture is
  // given up. False when it failed or the deadline passed before: still active, and `sealed` is not called.
  using Sealed = std::function<void(bool whole)>;
  bool release(std::span<const device::Stream> streams, Deadline deadline, Sealed sealed);
  // Gives up what is active. The grant stays unused.
  void cancel();

 private:
  struct Active {
    arena::Grant grant;
    CheckpointId checkpoint;
    const RankState* state;
  };
  // Which layout text this engine wrote to each slot, so that it is written once and not every iteration.
  using WrittenLayouts = std::array<std::uint64_t, arena::slots_max>;

  void over(bool whole);
  void seal();
  void publish(arena::WritableSlot slot, const PieceState& piece, std::uint64_t& written_layout) const;

  device::Device& device_;
  const std::uint32_t world_size_;
  AgentSession session_;
  std::optional<Active> active_;
  Sealed sealed_;
  std::array<WrittenLayouts, protocol::captures_max> written_layouts_{};  // by segment
};

}  // namespace ckpt::engine
