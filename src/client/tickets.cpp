#include "client/tickets.hpp"

#include <algorithm>

#include "base/futex.hpp"

namespace ckpt::client {

void Tickets::announce() {
  // Sequentially consistent, as in wait(): either the waiter sees the new doorbell, or it is seen here.
  doorbell_.fetch_add(1);
  if (waiters_.load() != 0) futex_wake_all(doorbell_, FutexScope::process);
}

void Tickets::open(std::int64_t iteration, State state, ckpt_status why, Clock::rep called_at) {
  Entry& ticket = entry(iteration);
  ticket.iteration.store(-1, std::memory_order_release);
  ticket.state.store(state, std::memory_order_release);
  ticket.why.store(why, std::memory_order_release);
  ticket.called_at.store(called_at, std::memory_order_release);
  ticket.iteration.store(iteration, std::memory_order_release);
}

void Tickets::waiting(std::int64_t iteration, Clock::time_point called_at) {
  open(iteration, State::waiting, CKPT_OK, called_at.time_since_epoch().count());
  announce();
}

void Tickets::taken(std::int64_t iteration, Clock::time_point called_at) {
  open(iteration, State::capturing, CKPT_OK, called_at.time_since_epoch().count());
  taken_.fetch_add(1, std::memory_order_relaxed);
  announce();
}

void Tickets::captured(std::int64_t iteration, std::uint64_t bytes, double capture_ms) {
  entry(iteration).state.store(State::captured, std::memory_order_release);
  newest_captured_.store(iteration, std::memory_order_release);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  capture_ms_.store(capture_ms, std::memory_order_relaxed);
  announce();
}

void Tickets::discarded(std::int64_t iteration) {
  entry(iteration).why.store(CKPT_DISCARDED, std::memory_order_release);
  entry(iteration).state.store(State::discarded, std::memory_order_release);
  discarded_.fetch_add(1, std::memory_order_relaxed);
  announce();
}

void Tickets::refused(std::int64_t iteration, ckpt_status why) {
  open(iteration, State::refused, why, 0);
  if (why == CKPT_SKIPPED) skipped_.fetch_add(1, std::memory_order_relaxed);
  if (why == CKPT_DISCARDED) discarded_.fetch_add(1, std::memory_order_relaxed);
  announce();
}

void Tickets::restored(std::int64_t iteration) {
  newest_captured_.store(iteration, std::memory_order_release);
  newest_committed_.store(iteration, std::memory_order_release);
  announce();
}

void Tickets::forget() {
  for (Entry& each : entries_) each.iteration.store(-1, std::memory_order_release);
  for (auto* newest : {&newest_captured_, &newest_committed_, &newest_durable_})
    newest->store(-1, std::memory_order_release);
  superseded_.store(false, std::memory_order_release);
  incarnations_.fetch_add(1, std::memory_order_acq_rel);
  announce();
}

void Tickets::committed(CheckpointId checkpoint, Clock::time_point now) {
  const std::int64_t iteration = checkpoint.iteration();
  if (iteration <= newest_committed_.load(std::memory_order_relaxed)) return;
  const Entry& ticket = entry(iteration);
  const Clock::rep called_at = ticket.called_at.load(std::memory_order_acquire);
  if (ticket.iteration.load(std::memory_order_acquire) == iteration && called_at != 0)
    commit_ms_.store(milliseconds_between(Clock::time_point(Clock::duration(called_at)), now),
                     std::memory_order_relaxed);
  commits_.fetch_add(1, std::memory_order_relaxed);
  newest_committed_.store(iteration, std::memory_order_release);
  announce();
}

void Tickets::durable(std::int64_t iteration) {
  if (iteration <= newest_durable_.load(std::memory_order_relaxed)) return;
  newest_durable_.store(iteration, std::memory_order_release);
  announce();
}

void Tickets::superseded() {
  if (!superseded_.exchange(true, std::memory_order_acq_rel)) announce();
}

Tickets::State Tickets::state_of(std::int64_t iteration) const {
  const Entry& ticket = entry(iteration);
  if (ticket.iteration.load(std::memory_order_acquire) != iteration) return State::none;
  const State state = ticket.state.load(std::memory_order_acquire);
  return ticket.iteration.load(std::memory_order_acquire) == iteration ? state : State::none;
}

ckpt_stage Tickets::stage(std::int64_t iteration) const {
  if (iteration < 0) return CKPT_STAGE_NONE;
  switch (state_of(iteration)) {
    case State::capturing:
      return CKPT_STAGE_CAPTURING;
    case State::captured:
      if (reached(iteration, CKPT_STAGE_DURABLE)) return CKPT_STAGE_DURABLE;
      return reached(iteration, CKPT_STAGE_COMMITTED) ? CKPT_STAGE_COMMITTED : CKPT_STAGE_CAPTURED;
    default:
      return CKPT_STAGE_NONE;
  }
}

bool Tickets::reached(std::int64_t iteration, ckpt_stage stage) const {
  const std::int64_t durable = newest_durable_.load(std::memory_order_acquire);
  if (stage == CKPT_STAGE_DURABLE) return durable >= iteration;
  // A checkpoint on storage was committed, even if the news of the commit is still on its way.
  const std::int64_t committed = std::max(newest_committed_.load(std::memory_order_acquire), durable);
  if (stage == CKPT_STAGE_COMMITTED) return committed >= iteration;
  const std::int64_t captured = std::max(newest_captured_.load(std::memory_order_acquire), committed);
  return captured >= iteration || (stage < CKPT_STAGE_CAPTURED && state_of(iteration) == State::capturing);
}

ckpt_status Tickets::hopeless(std::int64_t iteration) const {
  const State state = state_of(iteration);
  if (state == State::discarded || state == State::refused) return entry(iteration).why.load(std::memory_order_acquire);
  return superseded_.load(std::memory_order_acquire) ? CKPT_ERR_SUPERSEDED : CKPT_OK;
}

ckpt_status Tickets::wait(std::int64_t iteration, ckpt_stage stage, Deadline deadline) const {
  struct Waiter {
    std::atomic<std::uint32_t>& count;
    explicit Waiter(std::atomic<std::uint32_t>& waiters) : count(waiters) { count.fetch_add(1); }
    ~Waiter() { count.fetch_sub(1); }
  } waiter(waiters_);
  const std::uint32_t incarnation = incarnations_.load(std::memory_order_acquire);
  for (;;) {
    const std::uint32_t seen = doorbell_.load();
    if (incarnations_.load(std::memory_order_acquire) != incarnation) return CKPT_ERR_SUPERSEDED;
    if (reached(iteration, stage)) return CKPT_OK;
    if (const ckpt_status why = hopeless(iteration); why != CKPT_OK) return why;
    if (deadline.passed()) return CKPT_ERR_TIMEOUT;
    futex_wait(doorbell_, seen, deadline, FutexScope::process);
  }
}

ckpt_stats_t Tickets::stats() const {
  ckpt_stats_t stats = CKPT_STATS_INIT;
  stats.snapshots = taken_.load(std::memory_order_relaxed);
  stats.skipped = skipped_.load(std::memory_order_relaxed);
  stats.discarded = discarded_.load(std::memory_order_relaxed);
  stats.committed = commits_.load(std::memory_order_relaxed);
  stats.committed_iteration = commits_.load(std::memory_order_relaxed) != 0 ? newest_committed_.load() : -1;
  stats.durable_iteration = newest_durable_.load(std::memory_order_relaxed);
  stats.bytes_captured = bytes_.load(std::memory_order_relaxed);
  stats.stall_ms = stall_ms_.load(std::memory_order_relaxed);
  stats.capture_ms = capture_ms_.load(std::memory_order_relaxed);
  stats.commit_ms = commit_ms_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace ckpt::client
