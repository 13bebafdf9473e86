// The engine's part for own state: the private shard is sealed in each iteration, also in those whose main shard is not
// captured (docs/jit.md). A rank that dies leaves it, and the others have the main shard.

#include "client/engine.hpp"

namespace ckpt::client {
// On a GPU only if the host waits for it anyway.
bool Engine::keeps_own() const { return device_->can_start_late() || waits_for_gpu(); }

// Seals the private shard now, if the agent's slots are those that this process has mapped.
bool Engine::keep_own(CheckpointId checkpoint, const RankState& state, device::Stream stream) {
  return has_late_captures() && link_.connected() && link_.session_number() == session_number_ &&
         capture_.keep_own(checkpoint, state, stream);
}

// Keeps the private shard: a rank that dies before the next snapshot leaves it, and its peers can still capture the
// main shard. To the agent the iteration is being captured, because it may still become whole.
Outcome Engine::snapshot_own(std::int64_t iteration, Clock::time_point called_at, const RankState& state,
                             device::Stream stream) {
  const CheckpointId checkpoint(incarnation_.load(std::memory_order_relaxed), iteration);
  if (!keeps_own()) return {CKPT_SKIPPED, not_due};
  if (!device_->can_start_late()) return snapshot_own_on_gpu(checkpoint, state, stream);
  // In the order of Capture::begin(): the iteration becomes the one that was attempted when this call ends.
  capture_.session().control->capturing(checkpoint);
  if (keep_own(checkpoint, state, nullptr)) {
    capture_.expect_late(checkpoint, state);
  } else if (DeferredCapture::fits(state)) {
    deferred_.offer({checkpoint, &state, called_at, true});
    deferred_.try_begin([this] { return begin_deferred(); });
  }
  return {CKPT_SKIPPED, not_due};
}

// The main shard may follow only into slots that are granted and pinned now, because nothing is pinned after a failure.
Outcome Engine::snapshot_own_on_gpu(CheckpointId checkpoint, const RankState& state, device::Stream stream) {
  if (!unused_grant() && !(wait_for_freed_slot() && unused_grant())) return {CKPT_SKIPPED, not_due};
  if (!wait_until_attached(state)) return not_attached();
  capture_.session().control->capturing(checkpoint);
  if (keep_own(checkpoint, state, stream)) {
    capture_.expect_late(checkpoint, state);
  } else {
    capture_.session().control->capturing(CheckpointId());
    check_device(checkpoint.iteration());
  }
  return {CKPT_SKIPPED, not_due};
}

// Writes the private shard for the iteration whose update begins now. A rank that dies within that update leaves it,
// and the others may have the main shard.
void Engine::prepare_own() {
  const bool is_ready = std::exchange(own_is_ready_, true);
  if (!is_ready || !is_consecutive_ || options_.on_suspicion != OnSuspicion::halt || !device_->can_start_late()) return;
  if (capture_.active() || !capture_.session().slots || reserving_.under_way()) return;
  if (!link_.connected() || link_.session_number() != session_number_ || capture_.session().control->fenced() != 0)
    return;
  const RankState& state = registry_.state();
  if (capture_.misfit(state)) return;
  capture_.prepare_own(CheckpointId(incarnation_.load(std::memory_order_relaxed), last_iteration_ + 1), state);
}

}  // namespace ckpt::client
