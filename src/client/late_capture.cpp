// The engine's part in a halt: it lets no update begin, and captures the tensors late, after the failure, in slots that
// were granted before it. So does closing the engine: whatever is at rest then is captured.
//
// capture_late() runs on the thread that froze the gate: HaltWatch's, or the training thread while it closes the
// engine. It allocates nothing, opens nothing and asks nobody.

#include <algorithm>

#include "client/engine.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t slot_look_ms = 50;  // only bounds the wait: the doorbell wakes it

constexpr auto not_asked_for = "training has not called before_update() before each change of its tensors";
constexpr auto no_slot = "no slot was free, because earlier snapshots do not have all their copies yet";

}  // namespace

// Waits while the gate is held. Returns false if the incarnation is halted, so that no update may begin. A rank that
// waits here does what the halt demands. So it counts as paused, and is not suspected of a hang.
bool Engine::pass_gate() {
  if (gate_.begin_update()) return true;
  const Deadline deadline = Deadline::in_ms(limits_.gate_ms);
  link_.comm().pause("halt");
  bool has_passed = false;
  while (!(has_passed = gate_.begin_update())) {
    const UpdateGate::State state = gate_.state();
    if (state == UpdateGate::over || deadline.passed()) break;
    if (state >= UpdateGate::held) gate_.wait(state, deadline);
  }
  link_.comm().resume();
  return has_passed;
}

// From now on no other thread keeps the private shard of an iteration that is not due.
void Engine::settle_own() {
  if (deferred_.is_open() && deferred_.snapshot().is_own_only) deferred_.take_back();
}

// An iteration that was not due can no longer become whole, because the tensors change now.
void Engine::take_back_own() {
  settle_own();
  capture_.forget_late();
}

void Engine::leave_rest() {
  if (!has_late_captures()) return;
  if (!pass_gate()) {
    const Outcome outcome = halted();
    throw Failure(outcome.status, outcome.text);
  }
}

// If the change fails, what was at rest stays so.
void Engine::change_registered(const char* call, const std::function<void()>& change) {
  const bool was_at_rest = has_late_captures() && gate_.state() != UpdateGate::updating;
  leave_rest();
  settle_own();
  try {
    check_no_capture(call);
    is_registered_anew_ = true;
    change();
  } catch (...) {
    if (was_at_rest) gate_.rest_again();
    throw;
  }
  capture_.forget_late();
  habit_.left_rest();
}

std::string Engine::halt_text() const {
  const auto news = link_.control()->health().read();
  std::string text = "the job was halted";
  if (news && !news->suspicion.empty()) text += ": " + news->suspicion;
  const std::string iteration = std::to_string(gate_.iteration());
  if (gate_.state() != UpdateGate::over)
    text += "; the state of iteration " + iteration + " was not captured in time";
  else if (late_failure_.empty())
    text += "; the state of iteration " + iteration + " is captured";
  else
    text += "; the state of iteration " + iteration + " is not captured, because " + late_failure_;
  return text;
}

Outcome Engine::halted() {
  failure_ =
      halt_text() + "; call ckpt_rejoin() and ckpt_restore(), or end this process and restart the rank with all others";
  return {CKPT_ERR_HALTED, failure_.c_str()};
}

// Waits for the slots of a snapshot that had none. Returns false if it was given up. In a halted job a commit that is
// under way may free one, although the job is not protected.
bool Engine::await_slot(Deadline deadline, bool is_closing) {
  while (deferred_.waits() && !(is_closing && is_hopeless())) {
    const auto control = link_.control();
    const std::uint32_t seen = control->agent_doorbell();
    deferred_.try_begin([this] { return begin_deferred(); });
    if (!deferred_.waits() || deadline.passed()) break;
    control->wait_agent_doorbell(seen, Deadline::in_ms(std::min<std::int64_t>(deadline.remaining_ms(), slot_look_ms)));
  }
  return !deferred_.take_back();
}

// The agent grants slots for the main shard once an earlier commit has freed them. A commit may be under way.
std::optional<arena::Grant> Engine::await_grant(Deadline deadline, bool is_closing) try {
  for (;;) {
    const auto control = link_.control();
    const std::uint32_t seen = control->agent_doorbell();
    if (auto grant = unused_grant()) return grant;
    if (deadline.passed() || (is_closing && is_hopeless())) return std::nullopt;
    control->wait_agent_doorbell(seen, Deadline::in_ms(std::min<std::int64_t>(deadline.remaining_ms(), slot_look_ms)));
  }
} catch (const Failure&) {  // a grant that cannot be true
  return std::nullopt;
}

// A thread of the device tells of the seal first, and then the ticket.
bool Engine::is_captured(std::int64_t iteration) const {
  return newest_sealed_.load() == iteration || tickets_.newest_captured() == iteration;
}

// Makes the state of the gate's iteration whole in its slots. Returns false if that is impossible; late_failure_ then
// says why.
bool Engine::capture_late(Deadline slot_deadline, bool is_closing) {
  late_failure_.clear();
  const Deadline deadline = Deadline::in_ms(limits_.late_capture_ms);
  const std::string too_long = "its capture did not end within " + std::to_string(limits_.late_capture_ms) + " ms";
  const auto fail = [this](const std::string& why) {
    late_failure_ = why;
    return false;
  };
  // On a GPU the snapshot before may still be copied.
  if (!sealing_.wait(deadline)) return fail(too_long);
  if (is_captured(gate_.iteration())) return true;
  if (deferred_.is_open() && !await_slot(slot_deadline, is_closing)) return fail(no_slot);
  // Closing finishes a snapshot that was taken, as it always did.
  const bool finishes = is_closing && !capture_.may_begin_late() && !habit_.has_forgotten_after_taken();
  if (!gate_.is_kept() && !finishes) {
    cancel_capture();
    return fail(not_asked_for);
  }
  if (!capture_.active()) {
    if (!follow_session(slot_deadline)) return fail("the node's agent does not answer");
    if (!capture_.may_begin_late()) return fail("its snapshot was skipped or failed");
    const auto grant = await_grant(slot_deadline, is_closing);
    layered_.begin_hurried();
    if (!grant || !capture_.begin_late(*grant)) return fail(no_slot);
  }
  if (!release({}, deadline.remaining_ms())) {
    cancel_capture();
    const std::string why = device_->failure();
    return fail(why.empty() ? too_long : why);
  }
  if (!sealing_.wait(deadline)) return fail(too_long);
  if (is_captured(gate_.iteration())) return true;
  if (!capture_.failure().empty()) return fail(capture_.failure());
  return fail(deadline.passed() ? too_long : not_asked_for);  // the device gives a late copy up by itself
}

// Captures what is at rest. Returns false if a capture did not end in time.
bool Engine::capture_at_close() {
  if (gate_.abandon()) return true;
  if (gate_.freeze()) {
    gate_.end(capture_late(Deadline::in_ms(options_.close_timeout_ms), true));
    return true;
  }
  const Deadline deadline = Deadline::in_ms(limits_.gate_ms);
  while (gate_.state() == UpdateGate::frozen && !deadline.passed()) gate_.wait(UpdateGate::frozen, deadline);
  return gate_.state() == UpdateGate::over;
}

}  // namespace ckpt::client
