// How a simulated trainer freezes when its incarnation is halted. It is what src/client/update_gate, halt_watch and
// late_capture do. The watch's thread goes on while training spins, and stops with the process.
#include <algorithm>
#include <utility>

#include "sim/trainer.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs hold_timeout_ms = 3000;  // for the leader's decision, and for a rank that lags
}

void Trainer::watch_later(TimeMs delay_ms, std::function<void()> action) {
  world_.event_queue.after(delay_ms, [&world = world_, id = instance, action = std::move(action)] {
    Trainer* trainer = world.trainer(id);
    if (trainer == nullptr) return;
    if (trainer->is_frozen())
      trainer->postponed_looks_.push_back(action);
    else
      action();
  });
}

void Trainer::hear_of_halt() {
  watch_later(world_.random.between(0, 3), [this] { look_for_halt(); });
}

bool Trainer::has_heard_of_a_halt() {
  const Control* words = control();
  return give_up_at_.has_value() && words != nullptr && words->halt != 0;
}

// Returns false if the update must not begin. It begins later, or the process ends.
bool Trainer::passes_gate(std::int64_t k) {
  if (!world_.settings.can_halt()) return true;
  if (gate_ == Gate::resting) gate_ = Gate::updating;
  if (world_.settings.defect == Settings::Defect::updates_in_a_halt) return true;
  if (gate_ == Gate::updating) {
    may_follow_ = false;
    return true;
  }
  waits_to_update_ = k;
  set_paused(true);
  if (gate_ == Gate::over) leave_gate();
  return false;
}

void Trainer::leave_gate() {
  if (!waits_to_update_) return;
  const std::int64_t k = *std::exchange(waits_to_update_, std::nullopt);
  later(world_.random.between(0, 2), [this, k] {
    set_paused(false);
    if (gate_ != Gate::over) return begin_update(k);
    if (!world_.settings.can_rejoin()) close("halted");
  });
}

void Trainer::set_paused(bool is_paused) {
  if (Control* words = control()) words->is_paused = is_paused;
  world_.watch_check.paused(*this, is_paused);
}

void Trainer::rest() {
  if (!world_.settings.can_halt()) return;
  world_.halt_check.rested(*this);
  gate_ = iteration_ >= hold_from_ ? Gate::held : Gate::resting;
  if (give_up_at_) hear_of_halt();
}

void Trainer::look_for_halt() {
  Control* words = control();
  if (words == nullptr || words->halt == 0 || stage_ != Stage::training) return;
  const TimeMs now = world_.event_queue.now();
  if (!give_up_at_) {
    give_up_at_ = now + hold_timeout_ms;
    watch_later(hold_timeout_ms, [this] { look_for_halt(); });
  }
  const bool has_time = now < *give_up_at_;
  hold_from_ = has_time ? words->halt_at.value_or(INT64_MIN) : INT64_MIN;
  if (has_time && words->halt_at && iteration_ < *words->halt_at) {
    if (gate_ == Gate::held) {
      gate_ = Gate::resting;
      leave_gate();
    }
    if (gate_ <= Gate::resting) return answer(Freeze::updating);
  }
  if (gate_ == Gate::resting) gate_ = Gate::held;
  if (gate_ == Gate::updating) return answer(Freeze::updating);
  if (gate_ == Gate::held && !words->halt_at && has_time) return answer(Freeze::held);
  if (gate_ == Gate::held) return freeze_for_good();
  answer(gate_ == Gate::frozen ? Freeze::capturing : is_captured_late_ ? Freeze::captured : Freeze::refused);
}

void Trainer::answer(Freeze state) {
  Control* words = control();
  if (words == nullptr || words->halt == 0) return;
  const FreezeAnswer given{words->halt, state, iteration_};
  if (words->freeze == given) return;
  words->freeze = given;
  ring();
}

// Only the private shard of an iteration that is not due is in its slot. The rest follows now.
void Trainer::freeze_for_good() {
  gate_ = Gate::frozen;
  answer(Freeze::capturing);
  Control* words = control();
  if (newest_captured_ == iteration_) return end_freeze(true);
  if (capture_ == 0) {
    if (words == nullptr || words->fenced || !may_follow_ || !words->grant_is_open()) return end_freeze(false);
    for (const SlotRef& ref : words->slots) {
      if (ref.shard != words->private_shard) empty(ref);
    }
    capture_own_ = own_slot_;
    captured_record_.reset();
    capture_ = ++captures_;
    capture_ends_at_ = world_.event_queue.now() + world_.random.between(1, world_.settings.capture_ms);
    is_late_ = true;
  }
  const TimeMs left = std::max<TimeMs>(0, capture_ends_at_ - world_.event_queue.now());
  watch_later(left, [this, capture = capture_] {
    if (is_late_) captured_main_ = main_;  // the copy reads the tensors as they are
    seal_next(capture, 0);
  });
}

void Trainer::end_freeze(bool is_captured) {
  gate_ = Gate::over;
  is_captured_late_ = is_captured;
  if (is_captured) world_.halt_check.captured_late(*this);
  answer(is_captured ? Freeze::captured : Freeze::refused);
  leave_gate();
  rejoin_soon();
}

// ---- Rejoining ----

// Its communications are interrupted, so it need not wait in one. A process that spins does not come to it.
void Trainer::rejoin_soon() {
  if (!world_.settings.can_rejoin() || never_rejoins_) return;
  later(world_.random.between(0, 50), [this] { rejoin(); });
}

// The process stays. For the agent it is another trainer from now on, as after a goodbye and a new claim.
void Trainer::rejoin() {
  Kept kept{iteration_ < 0 ? CheckpointId() : CheckpointId(incarnation_, iteration_), main_, private_, is_corrupted_};
  if (restored_ && restored_.iteration() == iteration_) kept.live = restored_;  // no update has ended since
  if (world_.settings.defect == Settings::Defect::keeps_changed_tensors) kept.main = mix(kept.main, 1);
  world_.launcher.rejoins(*this, kept);
  has_left_ = true;
  close("it rejoins");
}

void Trainer::communication_failed() {
  later(world_.random.between(0, 20), [this] {
    Agent* agent = world_.agent_on(node);
    if (stage_ != Stage::training || gate_ == Gate::over || agent == nullptr) return;
    agent->later(world_.random.between(0, 2), [id = instance](Agent& a) { a.report_trouble(id); });
  });
}

}  // namespace ckpt::sim
