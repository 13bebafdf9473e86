// The engine's part after a halt: it tells that the rank is frozen, and joins the next incarnation in the same process.

#include "client/engine.hpp"

namespace ckpt::client {
namespace {

constexpr std::int64_t trouble_timeout_ms = 10'000;
constexpr std::size_t trouble_bytes_max = 500;

// One line of plain characters. Error texts of libraries may hold anything.
std::string loggable(const std::string& text) {
  std::string line = text.substr(0, trouble_bytes_max);
  for (char& each : line) {
    const auto code = static_cast<unsigned char>(each);
    if (code < ' ')
      each = ' ';
    else if (code > '~')
      each = '?';
  }
  return line;
}

}  // namespace

Outcome Engine::wait_halt(std::int64_t timeout_ms, ckpt_halt_t& halt) const {
  if (options_.on_suspicion != OnSuspicion::halt)
    return {CKPT_ERR_INVALID,
            "wait_halt() needs the option on_suspicion=halt; give it to all ranks and agents of the job"};
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  for (;;) {
    if (const UpdateGate::State state = gate_.state(); state != UpdateGate::over) {
      if (deadline.passed())
        return {CKPT_ERR_TIMEOUT, "this rank was not halted within the time given to wait_halt(); wait again"};
      gate_.wait(state, deadline);
      continue;
    }
    const std::lock_guard lock(halt_mutex_);
    if (gate_.state() != UpdateGate::over) continue;  // it has just rejoined
    halt.captured = late_failure_.empty() ? 1 : 0;
    halt.incarnation = incarnation_.load();
    halt.iteration = gate_.iteration();
    halt.text[halt_text().copy(halt.text, sizeof halt.text - 1)] = '\0';
    return {};
  }
}

void Engine::report_trouble(const std::string& text) {
  if (options_.on_suspicion != OnSuspicion::halt)
    throw Failure(CKPT_ERR_INVALID,
                  "report_trouble() needs the option on_suspicion=halt; give it to all ranks and agents of the job");
  if (incarnation_.load() == 0)
    throw Failure(
        CKPT_ERR_INVALID,
        "report_trouble() was called before restore(), but only ranks that train can be halted; call restore() first");
  if (gate_.is_closed()) return;
  const nlohmann::json request = {{"type", "trouble"}, {"text", loggable(text)}};
  link_.ask(request, request, Deadline::in_ms(trouble_timeout_ms));
}

// Throws unless the halt is over for this rank.
void Engine::await_end_of_halt() const {
  if (gpu_replication_)
    throw Failure(CKPT_ERR_INVALID,
                  "rejoin() does not support the option replication=gpu; end this process and restart the rank");
  if (!gate_.is_closed())
    throw Failure(CKPT_ERR_INVALID,
                  "rejoin() was called, but this rank is not halted; call wait_halt() first. If no halt comes, end "
                  "this process and restart the rank");
  const Deadline deadline = Deadline::in_ms(limits_.gate_ms);
  for (UpdateGate::State state = gate_.state(); state != UpdateGate::over; state = gate_.state()) {
    if (deadline.passed())
      throw Failure(CKPT_ERR_TIMEOUT,
                    "rejoin() waited for the capture of this halted rank, and the capture did not end in time; end "
                    "this process and restart the rank");
    gate_.wait(state, deadline);
  }
}

void Engine::rejoin() {
  await_end_of_halt();
  interposed_.abort_communicators(incarnation_.load(), limits_.abort_ms);
  halt_watch_.stop();
  reserving_.end();
  deferred_.take_back();
  capture_.cancel();
  capture_.renew();
  use_gpu_comm(nullptr);
  link_.rejoin(Deadline::in_ms(options_.claim_timeout_ms));
  forget_incarnation();
  halt_watch_.start();
}

CheckpointId Engine::live_checkpoint() const {
  const auto restored = CheckpointId::from_word(restored_word_.load());
  if (restored && restored.iteration() == gate_.iteration()) return restored;  // no update has ended since
  return gate_.iteration() < 0 ? CheckpointId() : CheckpointId(incarnation_.load(), gate_.iteration());
}

// As in a new engine. What is registered stays.
void Engine::forget_incarnation() {
  live_ = live_checkpoint();
  is_registered_anew_ = false;
  holds_a_part_ = false;
  tickets_.forget();
  newest_sealed_.store(-1);
  stored_.reset();
  early_layout_.reset();
  stored_layout_.clear();
  has_taken_ = false;
  taken_bytes_ = 0;
  restored_word_.store(0);
  last_iteration_ = -1;
  habit_.left_rest();
  captures_next_ = false;
  is_consecutive_ = false;
  granted_after_ = {};
  reserve_failure_.reset();
  reserving_.take_failure();
  const std::lock_guard lock(halt_mutex_);
  incarnation_.store(0);
  late_failure_.clear();
  gate_.reopen();
}

}  // namespace ckpt::client
