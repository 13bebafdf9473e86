#include "client/halt_watch.hpp"

#include <utility>

#include "base/thread.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t idle_look_ms = 100;  // only bounds the wait: the doorbell wakes the thread

}  // namespace

HaltWatch::HaltWatch(UpdateGate& gate, const Settings& settings, Source source)
    : gate_(gate), settings_(settings), source_(std::move(source)) {
  start();
}

void HaltWatch::start() {
  give_up_at_.reset();
  stop_.store(false, std::memory_order_release);
  if (settings_.has_thread) thread_ = start_thread("ckpt-halt", [this] { run(); });
}

void HaltWatch::stop() {
  stop_.store(true, std::memory_order_release);
  if (!thread_.joinable()) return;
  if (const auto control = source_.control()) control->ring_trainer();
  thread_.join();
}

void HaltWatch::answer_at_end() {
  const auto control = settings_.has_thread ? source_.control() : nullptr;
  if (control == nullptr || gate_.state() != UpdateGate::over) return;
  if (const auto halt = control->halt()) answer(*control, halt->number, end_state());
}

void HaltWatch::run() {
  while (!stop_.load(std::memory_order_acquire)) {
    const auto control = source_.control();
    const std::uint32_t seen = control->agent_doorbell();
    look(*control, Clock::now());
    if (stop_.load(std::memory_order_acquire)) return;
    const bool awaits_training = give_up_at_ && gate_.state() != UpdateGate::over;
    control->wait_agent_doorbell(seen, Deadline::in_ms(awaits_training ? settings_.look_every_ms : idle_look_ms));
  }
}

// This rank is behind the others, and has time to catch up.
bool HaltWatch::may_pass(const arena::HaltWords& halt, Clock::time_point now) const {
  return halt.iteration && gate_.iteration() < *halt.iteration && now < *give_up_at_;
}

void HaltWatch::look(arena::Control& control, Clock::time_point now) {
  const auto halt = control.halt();
  if (!halt) return gate_.hold_from(INT64_MAX);
  if (!give_up_at_) give_up_at_ = now + std::chrono::milliseconds(settings_.hold_timeout_ms);
  gate_.hold_from(now < *give_up_at_ ? halt->iteration.value_or(INT64_MIN) : INT64_MIN);
  if (may_pass(*halt, now)) {
    gate_.pass();
    if (!gate_.is_closed()) return answer(control, halt->number, FreezeState::updating);
  }
  gate_.hold();
  if (gate_.state() == UpdateGate::updating) return answer(control, halt->number, FreezeState::updating);
  if (gate_.state() == UpdateGate::held && !halt->iteration && now < *give_up_at_)
    return answer(control, halt->number, FreezeState::held);
  if (gate_.freeze()) {
    answer(control, halt->number, FreezeState::capturing);
    gate_.end(source_.capture());
  }
  answer(control, halt->number, end_state());
}

// Closing the engine may have frozen the gate, before or during the halt.
FreezeState HaltWatch::end_state() const {
  if (gate_.state() != UpdateGate::over) return FreezeState::capturing;
  return gate_.is_captured() ? FreezeState::captured : FreezeState::refused;
}

void HaltWatch::answer(arena::Control& control, std::uint64_t halt, FreezeState state) {
  const arena::FreezeWords words{halt, static_cast<std::uint8_t>(state), gate_.iteration()};
  if (control.freeze() == words) return;
  control.freeze(words);
  control.ring_agent();
}

}  // namespace ckpt::client
