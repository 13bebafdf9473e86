// The engine's part in a halt: it lets no update begin, and captures the tensors late, after the failure, in slots that
// were granted before it. So does closing the engine: whatever is at rest then is captured.
//
// capture_late() runs on the thread that froze the gate: HaltWatch's, or the training thread while it closes the
// engine. For state in host memory it allocates nothing, opens nothing and asks nobody.

#include <algorithm>

#include "client/engine.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t late_copy_timeout_ms = 60'000;  // far longer than any copy in memory
constexpr std::int64_t gate_timeout_ms = 75'000;       // longer than HaltWatch waits for a decision, and copies
constexpr std::int64_t session_timeout_ms = 1'000;     // while the link is busy with a request
constexpr std::int64_t slot_look_ms = 50;              // only bounds the wait: the doorbell wakes it

constexpr auto not_asked_for = "training changes its tensors without before_update()";

}  // namespace

// Waits while the gate is held. Returns false if the incarnation is halted, so that no update may begin.
bool Engine::pass_gate() {
  const Deadline deadline = Deadline::in_ms(gate_timeout_ms);
  while (!gate_.begin_update()) {
    const UpdateGate::State state = gate_.state();
    if (state == UpdateGate::over || deadline.passed()) return false;
    if (state >= UpdateGate::held) gate_.wait(state, deadline);
  }
  return true;
}

// A small snapshot can no longer become whole, because the tensors change now.
void Engine::take_back_small() {
  if (deferred_.is_open() && deferred_.snapshot().is_small_only) deferred_.take_back();
  capture_.forget_small();
}

// The training thread is about to change what is registered.
void Engine::leave_rest() {
  if (!has_late_captures()) return;
  if (!pass_gate()) {
    const Outcome outcome = halted();
    throw Failure(outcome.status, outcome.text);
  }
  take_back_small();
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
  failure_ = halt_text() + "; call ckpt_rejoin() and restore, or end this process and restart the rank with all others";
  return {CKPT_ERR_HALTED, failure_.c_str()};
}

// Waits for the slots of a snapshot that had none. Returns false if it was given up.
bool Engine::await_slot(Deadline deadline) {
  while (deferred_.waits()) {
    const auto control = link_.control();
    const std::uint32_t seen = control->agent_doorbell();
    deferred_.try_begin([this] { return begin_deferred(); });
    if (!deferred_.waits() || deadline.passed()) break;
    control->wait_agent_doorbell(seen, Deadline::in_ms(std::min<std::int64_t>(deadline.remaining_ms(), slot_look_ms)));
  }
  return !deferred_.take_back();
}

// Makes the state of the gate's iteration whole in its slots. Returns false if that is impossible; late_failure_ then
// says why.
bool Engine::capture_late(Deadline slot_deadline, bool is_closing) {
  late_failure_.clear();
  const auto fail = [this](const std::string& why) {
    late_failure_ = why;
    return false;
  };
  // On a GPU the snapshot before may still be copied.
  if (!sealing_.wait(Deadline::in_ms(late_copy_timeout_ms))) return fail("the copy did not end within a minute");
  if (tickets_.newest_captured() == gate_.iteration()) return true;
  if (deferred_.is_open() && !await_slot(slot_deadline))
    return fail("no slot was free, as earlier snapshots do not have all their copies yet");
  if (!gate_.is_kept() && (!is_closing || capture_.can_begin_late())) {
    if (!is_closing) capture_.cancel();
    return fail(not_asked_for);
  }
  if (!capture_.active()) {
    if (!follow_session(Deadline::in_ms(session_timeout_ms))) return fail("the node's agent does not answer");
    if (!capture_.can_begin_late())
      return fail(registry_.has_gpu_tensors() ? "tensors are in GPU memory, and this iteration was not due"
                                              : "its snapshot was skipped or failed");
    capture_.begin_late();
  }
  if (!release({}, late_copy_timeout_ms)) {
    capture_.cancel();
    const std::string why = device_->failure();
    return fail(why.empty() ? "the copy did not end within a minute" : why);
  }
  if (!sealing_.wait(Deadline::in_ms(late_copy_timeout_ms))) return fail("the copy did not end within a minute");
  if (tickets_.newest_captured() == gate_.iteration()) return true;
  return fail(capture_.failure().empty() ? not_asked_for : capture_.failure());
}

// Captures what is at rest. Returns false if a capture did not end in time.
bool Engine::capture_at_close() {
  if (gate_.state() == UpdateGate::updating) return true;
  if (gate_.freeze()) {
    capture_late(Deadline::in_ms(options_.close_timeout_ms), true);
    gate_.end();
    return true;
  }
  const Deadline deadline = Deadline::in_ms(gate_timeout_ms);
  while (gate_.state() == UpdateGate::frozen && !deadline.passed()) gate_.wait(UpdateGate::frozen, deadline);
  return gate_.state() == UpdateGate::over;
}

}  // namespace ckpt::client
