// The engine's part in every iteration: snapshot() and before_update(). Once slots are reserved, and unless a
// registration changed, they make no system calls except of futexes, take no lock and allocate nothing.
//
// Without a free slot, snapshot() defers the capture. It begins once the agent grants a slot, or before_update() skips
// it.

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "client/engine.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t capture_timeout_ms = 60'000;  // far longer than any copy in memory
constexpr std::int64_t first_grant_wait_ms = 1'000;  // after the slots were made, which takes longer
constexpr std::int64_t next_grant_wait_ms = 20;      // after a commit, which frees a slot
// Slots for so little are made within some tenths of a second, so their first snapshot waits for them.
constexpr std::uint64_t small_state_bytes = 64 << 20;
constexpr std::int64_t small_reserve_wait_ms = 1'000;
constexpr std::int64_t look_ms = 50;  // while the engine is closed: whether a commit is still near
constexpr std::chrono::milliseconds link_poll{1};
constexpr std::chrono::microseconds lead_poll{50};  // the longest that a GPU waits for the host
constexpr std::chrono::seconds reserve_pause{5};    // between two attempts after a refused reservation

constexpr auto still_copied =
    "all ranks skip the snapshot of this iteration, because the previous one is still being copied from the GPU; "
    "training is not affected";
constexpr auto not_reserved =
    "this iteration's snapshot is skipped on all ranks, because memory for checkpoints is still being reserved in the "
    "background; training is not affected";
constexpr auto waits_for_copies =
    "all ranks skip the snapshot of this iteration, because earlier ones do not have all their copies yet; training is "
    "not affected";

// Private state is blobs that vary a little in size, so this leaves room to grow.
std::uint64_t with_headroom(std::uint64_t bytes) { return 2 * bytes + (64u << 10); }

// Whether gradient records are captured beside the main shard.
bool has_records(const RankState& state, const Options& options) {
  return options.recomputes() && state.captured.size() == 2 &&
         state.captured.front().length_bytes() == state.main.length_bytes();
}

SlotSizes slot_sizes(const RankState& state, const Options& options) {
  const std::uint64_t main_bytes = std::max(state.main.length_bytes(), options.slot_bytes);
  // State that will grow also has a growing layout.
  const std::uint64_t growth = state.main.length_bytes() == 0 ? 1 : main_bytes / state.main.length_bytes();
  SlotSizes sizes;
  for (const PieceState& piece : state.captured) {
    const std::uint64_t layout_bytes = with_headroom(piece.shard->layout_text.size());
    if (piece.shard == &state.private_) {
      sizes.push_back({piece.name, with_headroom(piece.length_bytes()), layout_bytes});
      continue;
    }
    const std::uint64_t bytes = arena::range_of(core::parse_part(piece.name), main_bytes).size_bytes;
    sizes.push_back({piece.name, has_records(state, options) ? arena::bytes_with_record(bytes) : bytes,
                     std::min<std::uint64_t>(growth, 16) * layout_bytes});
  }
  return sizes;
}

bool is_small(const RankState& state) {
  return state.main.length_bytes() + state.private_.length_bytes() <= small_state_bytes;
}

}  // namespace

void Engine::check_order(std::int64_t iteration) const {
  if (incarnation_.load(std::memory_order_relaxed) == 0)
    throw Failure(CKPT_ERR_INVALID,
                  "snapshot() was called before restore(); call restore() once first, even if nothing is stored");
  if (registry_.empty())
    throw Failure(CKPT_ERR_INVALID, "snapshot() was called before register_tensor(); register the state first");
  if (iteration < 0 || iteration > CheckpointId::iteration_max)
    throw Failure(CKPT_ERR_INVALID, "iteration " + std::to_string(iteration) + " is out of range; use 0 to 2^40 - 1");
  if (iteration <= last_iteration_)
    throw Failure(CKPT_ERR_INVALID, "iteration numbers go backwards: snapshot(" + std::to_string(iteration) +
                                        ") came after iteration " + std::to_string(last_iteration_) +
                                        "; continue from restore()'s next_iteration and count up");
}

void Engine::wait_for_grant(Deadline deadline) const {
  const auto control = link_.control();
  for (;;) {
    const std::uint32_t seen = control->agent_doorbell();
    if (control->grant().sequence != control->used_grant() || deadline.passed()) return;
    control->wait_agent_doorbell(seen, deadline);
  }
}

// Begins as soon as the sizes are known: usually at the end of restore().
void Engine::begin_reserving() {
  Reservation wanted{slot_sizes(registry_.state(), options_), device_->shortage()};
  reserving_.begin([this, wanted = std::move(wanted)] {
    link_.reserve(wanted);
    if (const auto slots = link_.session().slots) device_->prepare(ranges_of(*slots), slots);
    wait_for_grant(Deadline::in_ms(first_grant_wait_ms));  // so that the next snapshot finds it
  });
}

// Whether there are slots that the state fits. Memory for them is reserved in the background. State that has grown gets
// larger slots. The agent makes them beside the old ones and copies their contents, so nothing committed is lost.
// Throws the failure of the last reservation, until another one has succeeded.
bool Engine::fit_slots(const RankState& state) {
  if (!reserving_.under_way() && capture_.session().slots && !capture_.misfit(state)) return true;
  for (bool has_begun = false;; has_begun = true) {
    if (is_small(state)) reserving_.wait(Deadline::in_ms(small_reserve_wait_ms));
    if (reserving_.under_way()) {
      if (reserve_failure_) throw *reserve_failure_;
      return false;
    }
    if (auto failure = reserving_.take_failure()) {
      reserve_failure_ = std::move(failure);
      const bool is_refused = reserve_failure_->status() != CKPT_ERR_NO_AGENT;
      reserve_again_at_ = Clock::now() + (is_refused ? reserve_pause : reserve_pause.zero());
    }
    if (!follow_session(Deadline::in_ms(is_small(state) ? small_reserve_wait_ms : 0))) return false;
    const bool has_slots = capture_.session().slots != nullptr;
    const auto misfit = has_slots ? capture_.misfit(state) : std::nullopt;
    if (has_slots && !misfit) {
      reserve_failure_.reset();
      return true;
    }
    if (reserve_failure_ && Clock::now() < reserve_again_at_) throw *reserve_failure_;
    if (has_begun && misfit)
      throw Failure(
          CKPT_ERR_INTERNAL,
          *misfit +
              ", and the agent made no larger slots: this is a bug in ckptengine; report it with the agent's log");
    begin_reserving();
  }
}

bool Engine::wait_until_attached(const RankState& state) {
  return device_->wait_until_attached(Deadline::in_ms(is_small(state) ? small_reserve_wait_ms : 0));
}

// It may be reading from slots that will be unmapped, or nobody reads its page and what it receives.
bool Engine::loses_replication(const AgentSession& next) const {
  if (!gpu_replication_) return false;
  const auto& slots = capture_.session().slots;
  return (slots && slots != next.slots) || !replication_control_->same_as(*next.control);
}

// False while the link is busy with a request. That may take seconds, so training waits for it until the deadline only.
bool Engine::follow_session(Deadline deadline) {
  const std::uint32_t number = link_.session_number();
  if (number == session_number_) return true;
  if (reserving_.under_way()) return false;  // slots that are being prepared are not attached yet
  auto session = link_.session_now();
  for (; !session && !deadline.passed(); session = link_.session_now()) std::this_thread::sleep_for(link_poll);
  if (!session) return false;
  if (loses_replication(*session))
    gpu_replication_->end("this rank got new slots, because its state has grown or the old slots were lost");
  capture_.attach(*std::move(session));
  session_number_ = number;
  return true;
}

// The previous snapshot was never finished: its tensors may have changed during the copy.
void Engine::discard_forgotten() {
  if (!open_capture()) return;
  const std::string iteration = std::to_string(last_iteration_);
  discard();
  warnings_.add(CKPT_WARNING_FORGOTTEN_UPDATE,
                "the snapshot of iteration " + iteration +
                    " was discarded, because before_update() was not called after it; call before_update() before "
                    "each change of the registered tensors");
}

void Engine::discard() {
  leave_rest();
  if (has_late_captures()) take_back_own();
  habit_.left_rest();
  if (!open_capture() || give_up_deferred(CKPT_DISCARDED)) return;
  tickets_.discarded(last_iteration_);
  capture_.session().control->not_taken(last_iteration_, CKPT_DISCARDED);
  cancel_capture();
}

void Engine::cancel_capture() {
  if (gpu_replication_ && capture_.active()) gpu_replication_->discarded(capture_.checkpoint());
  capture_.cancel();
}

void Engine::check_fence(const arena::Control& control) {
  const std::uint64_t incarnation = control.fenced();
  if (incarnation == 0) return;
  tickets_.superseded();  // the watcher learns of it later
  const std::string rank = std::to_string(options_.rank);
  if (incarnation == arena::fenced_without_incarnation)
    throw Failure(
        CKPT_ERR_SUPERSEDED,
        "the node's agent takes no more snapshots of rank " + rank +
            " from this process; ckptctl status says why. Stop this process and restart the rank with all others");
  throw Failure(CKPT_ERR_SUPERSEDED,
                "this process of rank " + rank + " does not belong to incarnation " + std::to_string(incarnation) +
                    ", which has begun. A rank was restarted, or the coordination store lost the records of the "
                    "earlier incarnation. Stop this process and restart the rank with all others");
}

Outcome Engine::try_snapshot(std::int64_t iteration, Clock::time_point called_at, device::Stream stream) {
  device_->check_streams("snapshot()", {&stream, 1});
  discard_forgotten();
  is_consecutive_ = iteration == last_iteration_ + 1;
  last_iteration_ = iteration;
  const bool has_overtaken_copy = sealing_.under_way();
  if (has_overtaken_copy && !is_due(iteration) && !keeps_own()) return {CKPT_SKIPPED, not_due};
  if (has_overtaken_copy && !wait_for_seal(stream)) return {CKPT_SKIPPED, is_due(iteration) ? still_copied : not_due};
  const RankState& state = registry_.state();
  const Deadline deadline = Deadline::in_ms(is_small(state) ? small_reserve_wait_ms : 0);
  reserving_.wait(deadline);
  const bool is_followed = follow_session(deadline);
  if (!capture_.session().control) capture_.use(link_.control());
  check_fence(*capture_.session().control);
  if (!link_.connected()) {
    const Failure why = link_.why_disconnected();
    throw Failure(why.status(), "snapshot(" + std::to_string(iteration) + ") is not taken: " + why.what());
  }
  if (!is_followed || !fit_slots(state)) return {CKPT_SKIPPED, not_reserved};
  if (!wait_until_attached(state)) return not_attached();
  check_device(iteration);

  if (iteration < capture_.session().control->resume_at()) return {CKPT_SKIPPED, waits_for_copies};
  if (!is_due(iteration)) return snapshot_own(iteration, called_at, state, stream);
  captures_next_ = false;
  capture_.with_record(record_of(iteration, state));
  auto grant = unused_grant();
  if (!grant && device_->can_start_late() && DeferredCapture::fits(state)) {
    keep_own(CheckpointId(incarnation_.load(std::memory_order_relaxed), iteration), state, nullptr);
    defer(iteration, called_at, state);
    return {};
  }
  if (!grant && has_overtaken_copy) {
    wait_for_next_grant();
    grant = unused_grant();
  }
  if (!grant && wait_for_freed_slot()) grant = unused_grant();
  if (!grant) return {CKPT_SKIPPED, waits_for_copies};
  // The grant may name a slot that is new.
  if (!wait_until_attached(state)) return not_attached();
  check_device(iteration);
  tickets_.taken(iteration, called_at);
  layered_.begin(capture_.session().control, gpu_bubbles());
  const CheckpointId checkpoint(incarnation_.load(std::memory_order_relaxed), iteration);
  capture_.begin(*grant, checkpoint, state, stream);
  if (gpu_replication_)
    gpu_replication_->capturing(checkpoint, capture_.main_piece(), device_->capture_number(), capture_.session().slots);
  pass_on_news();
  return {};
}

Outcome Engine::not_attached() {
  failure_ = std::string(not_reserved) + " (" + device_->attaching() + ")";
  return {CKPT_SKIPPED, failure_.c_str()};
}

void Engine::check_device(std::int64_t iteration) const {
  if (device_->broken())
    throw Failure(CKPT_ERR_SYSTEM, "snapshot(" + std::to_string(iteration) + ") is not taken: " + device_->failure());
}

// All ranks must decide alike: the option and the placement of the job are the same for them, and so is the kind of
// memory.
bool Engine::is_due(std::int64_t iteration) const {
  const bool is_in_each = options_.capture == CaptureMode::automatic && (!is_replicated_ || !keeps_own());
  return captures_next_ || is_in_each || iteration % static_cast<std::int64_t>(options_.capture_every) == 0;
}

// For training that runs ahead of the GPU: at snapshot(k) the GPU may still be in iteration k, and copies snapshot k
// - 1. The host waits, but only while the GPU has work of training: it never waits for the host. So a copy that fits
// the iteration costs no snapshot. Returns false if it does not fit.
bool Engine::wait_for_seal(device::Stream stream) {
  device_->note_lead(stream);
  const Deadline deadline = Deadline::in_ms(capture_timeout_ms);
  while (sealing_.under_way() && device_->is_ahead() && !deadline.passed()) std::this_thread::sleep_for(lead_poll);
  return !sealing_.under_way();
}

// The agent has only just learned of the seal.
void Engine::wait_for_next_grant() const {
  const auto control = link_.control();
  const Deadline deadline = Deadline::in_ms(next_grant_wait_ms);
  const auto is_granted = [&] { return control->grant().sequence != control->used_grant(); };
  while (!is_granted() && device_->is_ahead() && !deadline.passed()) std::this_thread::sleep_for(lead_poll);
}

// A restarted agent grants slots of its own before this process has mapped them. Connection and session are looked at
// after the grant: the connection was lost before the next agent could grant anything.
std::optional<arena::Grant> Engine::unused_grant() {
  const auto grant = capture_.unused_grant();
  const bool is_for_these_slots = link_.connected() && link_.session_number() == session_number_;
  return is_for_these_slots ? grant : std::nullopt;
}

// The agent tells of a commit first, and grants the slot that it frees right afterwards. Waits for that grant, once for
// each commit: an agent that has stopped delays training only once. Returns false if it did not wait.
bool Engine::wait_for_freed_slot() {
  const CheckpointId committed = capture_.session().control->committed();
  const bool is_all_committed = committed.incarnation() == incarnation_.load(std::memory_order_relaxed) &&
                                committed.iteration() >= tickets_.newest_captured();
  if (!is_all_committed || committed == granted_after_) return false;
  granted_after_ = committed;
  wait_for_grant(Deadline::in_ms(next_grant_wait_ms));
  return true;
}

// The next commit frees a slot. There is time for the copy until before_update().
void Engine::defer(std::int64_t iteration, Clock::time_point called_at, const RankState& state) {
  tickets_.waiting(iteration, called_at);
  deferred_.offer({CheckpointId(incarnation_.load(std::memory_order_relaxed), iteration), &state, called_at});
  // The watcher may have seen the grant just before.
  deferred_.try_begin([this] { return begin_deferred(); });
}

// Runs on the training thread or on the watcher's, within DeferredCapture::try_begin(). What is wrong now, the next
// snapshot() tells.
bool Engine::begin_deferred() try {
  const auto& [checkpoint, state, called_at, is_own_only] = deferred_.snapshot();
  if (!follow_session(Deadline::in_ms(0)) || !capture_.session().slots || capture_.misfit(*state)) return false;
  const arena::Control& control = *capture_.session().control;
  if (control.fenced() != 0 || checkpoint.iteration() < control.resume_at()) return false;
  const auto grant = unused_grant();
  if (!grant) return false;
  if (is_own_only) {
    if (!capture_.keep_own(checkpoint, *state, nullptr, &deferred_.private_plan())) return false;
    capture_.expect_late(checkpoint, *state);
    return true;
  }
  tickets_.taken(checkpoint.iteration(), called_at);
  layered_.begin(capture_.session().control);
  capture_.begin(*grant, checkpoint, *state, nullptr, &deferred_.private_plan());
  return true;
} catch (const std::exception&) {
  return false;
}

// True if the snapshot still waited for a slot.
bool Engine::give_up_deferred(ckpt_status why) {
  if (!deferred_.take_back()) return false;
  not_taken(last_iteration_, why);
  return true;
}

// Waits until a deferred capture begins. False if it was given up.
bool Engine::await_deferred(Deadline deadline) {
  const auto next_look = [&] { return Deadline::in_ms(std::min<std::int64_t>(deadline.remaining_ms(), look_ms)); };
  while (deferred_.waits() && !is_hopeless() && !deadline.passed()) {
    const ckpt_status status = tickets_.wait(last_iteration_, CKPT_STAGE_CAPTURING, next_look());
    if (status != CKPT_OK && status != CKPT_ERR_TIMEOUT) break;
  }
  return !give_up_deferred(CKPT_SKIPPED);
}

void Engine::pass_on_news() {
  if (const auto news = device_->take_news()) warnings_.add(CKPT_WARNING_GPU_MEMORY, *news);
  if (!gpu_replication_) return;
  if (const auto news = gpu_replication_->take_news()) warnings_.add(CKPT_WARNING_REPLICATION, *news);
}

void Engine::not_taken(std::int64_t iteration, ckpt_status why) {
  tickets_.refused(iteration, why);
  const auto control = link_.control();  // the session may be replaced by the thread that begins deferred captures
  if (why != CKPT_SKIPPED) control->not_taken(iteration, static_cast<std::uint8_t>(why));
  control->attempted(iteration);
  control->ring_agent();
}

// If communications or bubbles are marked on the GPU's timeline, iterations are, too.
void Engine::mark_iteration(Clock::time_point now, device::Stream stream) const {
  if (const auto gpu = gpu_comm(); gpu && gpu->iteration(stream)) return;
  link_.comm().iteration(now);
}

// With tensors on a GPU, the time at which the host calls says nothing.
void Engine::mark_update() const {
  if (!registry_.has_gpu_tensors()) return link_.comm().update(Clock::now());
  if (const auto gpu = gpu_comm()) gpu->update();
}

std::optional<GpuBubbles> Engine::gpu_bubbles() const {
  const auto gpu = gpu_comm();
  return gpu ? std::optional(gpu->bubbles()) : std::nullopt;
}

void Engine::warn_of_habit() {
  warnings_.add(
      CKPT_WARNING_FORGOTTEN_UPDATE,
      "before_update() was not called after the snapshot of iteration " + std::to_string(last_iteration_) +
          ". So this rank is captured neither after a failure nor when its engine is closed. Call "
          "before_update() before each change of the registered tensors, also after a snapshot that was skipped");
}

void Engine::rest(std::int64_t iteration, bool is_taken) {
  habit_.ended_snapshot(is_taken);
  gate_.rest(iteration, habit_.is_kept());
}

Outcome Engine::snapshot(std::int64_t iteration, device::Stream stream) {
  const auto called_at = Clock::now();
  check_order(iteration);
  if (waits_for_gpu()) device_->check_streams("snapshot()", {&stream, 1});
  if (habit_.rests() && gate_.is_closed()) capture_.tear();
  if (!pass_gate()) return halted();
  await_gpu("snapshot()", {&stream, 1});
  if (habit_.began_snapshot(incarnation_.load(std::memory_order_relaxed)) && has_late_captures()) warn_of_habit();
  take_back_own();
  link_.comm().offered(iteration);
  if (layered_.began_iteration(called_at)) link_.comm().bubble_end();
  mark_iteration(called_at, stream);
  if (registry_.has_gpu_tensors() && options_.world_size > 1)
    if (const auto news = interposed_.after_iteration()) warnings_.add(CKPT_WARNING_INTERPOSE, *news);
  snapshot_called_at_ = called_at;
  Outcome outcome;
  try {
    outcome = try_snapshot(iteration, called_at, stream);
  } catch (const Failure& failure) {
    gradients_.updated();
    not_taken(iteration, failure.status());
    rest(iteration, false);
    throw;
  }
  if (outcome.status != CKPT_OK) not_taken(iteration, outcome.status);
  gradients_.updated();
  rest(iteration, outcome.status == CKPT_OK);
  snapshot_stall_ms_ = milliseconds_between(called_at, Clock::now());
  tickets_.stalled(snapshot_stall_ms_);
  return outcome;
}

// Runs on any thread.
void Engine::sealed(bool whole) {
  const auto [iteration, bytes, called_at, main, slots] = released_;
  layered_.end();
  capture_.session().control->copied(layered_.copied_bytes());
  if (!whole) capture_.session().control->not_taken(iteration, CKPT_DISCARDED);
  released_.slots.reset();
  if (gpu_replication_) {
    const CheckpointId checkpoint(incarnation_.load(std::memory_order_relaxed), iteration);
    whole ? gpu_replication_->captured(checkpoint, main, slots) : gpu_replication_->discarded(checkpoint);
  }
  if (whole) newest_sealed_.store(iteration);
  sealing_.end();  // first: whoever waited for the ticket may take the next snapshot
  if (whole)
    tickets_.captured(iteration, bytes, milliseconds_between(called_at, Clock::now()));
  else
    tickets_.discarded(iteration);
}

bool Engine::release(std::span<const device::Stream> streams, std::int64_t timeout_ms) {
  released_ = {capture_.checkpoint().iteration(), capture_.length_bytes(), snapshot_called_at_, capture_.main_piece(),
               capture_.session().slots};
  sealing_.begin();
  const bool is_released = capture_.release(streams, timeout_ms, [this](bool whole) { sealed(whole); });
  if (!is_released) sealing_.none();
  return is_released;
}

Outcome Engine::before_update(std::span<const device::Stream> streams) {
  device_->check_streams("before_update()", streams);
  mark_update();
  const bool was_at_rest = gate_.state() != UpdateGate::updating;
  await_gpu("before_update()", streams);
  if (!pass_gate()) return halted();
  habit_.asked();
  take_back_own();
  const bool was_captured = open_capture();
  const Outcome outcome = end_capture(streams);
  if (was_captured) begin_update();
  if (was_at_rest) prepare_own();
  return outcome;
}

Outcome Engine::end_capture(std::span<const device::Stream> streams) {
  if (!open_capture()) return {};
  const auto called_at = Clock::now();
  deferred_.try_begin([this] { return begin_deferred() || (wait_for_freed_slot() && begin_deferred()); });
  if (give_up_deferred(CKPT_SKIPPED)) {
    tickets_.stalled(snapshot_stall_ms_ + milliseconds_between(called_at, Clock::now()));
    return {CKPT_SKIPPED, waits_for_copies};
  }
  if (!release(streams, capture_timeout_ms)) {
    discard();
    failure_ = device_->failure();
    if (!failure_.empty()) return {CKPT_DISCARDED, failure_.c_str()};
    return {CKPT_DISCARDED,
            "this snapshot was discarded, because its copy did not end within a minute; check whether the machine is "
            "overloaded"};
  }
  tickets_.stalled(snapshot_stall_ms_ + milliseconds_between(called_at, Clock::now()));
  if (!sealing_.under_way() && !capture_.failure().empty()) {
    failure_ = capture_.failure();
    return {CKPT_DISCARDED, failure_.c_str()};
  }
  return {};
}

}  // namespace ckpt::client
