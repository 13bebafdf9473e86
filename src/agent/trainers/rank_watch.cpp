#include "agent/trainers/rank_watch.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::agent {
namespace {

using core::Rank;
using core::RankStanding;
using core::RankTrouble;

constexpr std::chrono::milliseconds stopped_least{500};  // shorter stops are no trouble
constexpr std::int64_t slept_least_ms = 1000;            // without a look: this agent did not run
constexpr std::int64_t looks_missed_max = 4;

core::TimeMs since_ms(Clock::time_point from, Clock::time_point now) {
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(milliseconds_between(from, now)));
}

// A mean varies a little all the time, and that is no news.
bool is_close(std::uint32_t a, std::uint32_t b) {
  const auto [low, high] = std::minmax(a, b);
  return std::uint64_t{high} * 4 <= std::uint64_t{low} * 5;
}

}  // namespace

void RankWatch::add(Rank rank, std::int64_t pid, std::shared_ptr<const arena::Control> control,
                    std::uint64_t incarnation) {
  ranks_.erase(rank);
  ranks_.try_emplace(rank, std::move(control), pid, limits_.deadline).first->second.incarnation = incarnation;
}

void RankWatch::joined(Rank rank, std::uint64_t incarnation) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  found->second.deadline = schedule::LearnedDeadline(limits_.deadline);
  found->second.incarnation = incarnation;
  found->second.computing_ms = 0;
}

void RankWatch::interrupted(Rank rank, Clock::time_point now) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  listen(found->second, now);
  found->second.deadline.pause(seconds_of(now));
  found->second.deadline.resume(seconds_of(now));
}

void RankWatch::died(Rank rank, Clock::time_point now) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  listen(found->second, now);
  found->second.died_at = now;
}

std::optional<std::string> RankWatch::paused(Rank rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? std::nullopt : found->second.log.paused();
}

// ---- One look ----

std::optional<core::RanksWatched> RankWatch::look(Clock::time_point now) {
  const std::int64_t slept_after_ms = std::max(slept_least_ms, looks_missed_max * limits_.look_every_ms);
  const bool has_slept = looked_at_ && milliseconds_between(*looked_at_, now) > static_cast<double>(slept_after_ms);
  looked_at_ = now;
  core::RanksWatched seen;
  for (auto& [rank, watched] : ranks_) {
    if (!watched.died_at) listen(watched, now);
    if (has_slept) {
      watched.deadline.wait_again(seconds_of(now));
      watched.stopped_since.reset();
    }
    if (watched.incarnation == 0) continue;
    if (auto standing = judge(rank, watched, now)) seen.in_trouble.push_back(*standing);
    const auto newest_ms = static_cast<std::uint32_t>(1e3 * watched.deadline.computing_s().value_or(0));
    if (!is_close(newest_ms, watched.computing_ms)) watched.computing_ms = newest_ms;
    if (watched.computing_ms != 0) seen.computing_ms.emplace_back(rank, watched.computing_ms);
  }
  if (!is_news(seen)) return std::nullopt;
  notified_ = seen;
  return seen;
}

void RankWatch::listen(Watched& watched, Clock::time_point now) {
  events_.clear();
  if (!watched.log.read(events_)) watched.deadline.lost_marks(seconds_of(now));
  for (const arena::CommEvent& event : events_) watched.deadline.observe(arena::mark_of(event, now));
  const bool is_paused = watched.log.paused().has_value();
  if (is_paused == watched.deadline.is_paused()) return;
  is_paused ? watched.deadline.pause(seconds_of(now)) : watched.deadline.resume(seconds_of(now));
}

std::optional<RankStanding> RankWatch::judge(Rank rank, Watched& watched, Clock::time_point now) const {
  const schedule::LearnedDeadline& deadline = watched.deadline;
  const double now_s = seconds_of(now);
  const char state = !watched.died_at && watched.process ? watched.process->state() : '\0';
  const bool is_stopped = state == 'T' || state == 't';
  if (!is_stopped) watched.stopped_since.reset();
  if (is_stopped && !watched.stopped_since) watched.stopped_since = now;

  RankStanding standing;
  standing.rank = rank;
  standing.incarnation = watched.incarnation;
  standing.process = state;
  standing.iteration = watched.log.offered();
  standing.begun = deadline.begun();
  if (deadline.marked_at_s() != 0)
    standing.still_ms = static_cast<core::TimeMs>(1e3 * std::max(0.0, now_s - deadline.marked_at_s()));
  if (watched.died_at) {
    standing.trouble = RankTrouble::dead;
    standing.still_ms = since_ms(*watched.died_at, now);
    return standing;
  }
  if (is_stopped && now - *watched.stopped_since >= stopped_least) {
    standing.trouble = RankTrouble::stopped;
    return standing;
  }
  if (const auto due_s = deadline.due_s(); !due_s || now_s <= *due_s) return std::nullopt;
  standing.trouble = deadline.is_communicating() ? RankTrouble::waiting : RankTrouble::computing;
  return standing;
}

// Times alone are no news. The same holds for the state of a process.
bool RankWatch::is_news(const core::RanksWatched& seen) const {
  const auto same = [](const RankStanding& a, const RankStanding& b) {
    return a.rank == b.rank && a.incarnation == b.incarnation && a.trouble == b.trouble && a.iteration == b.iteration &&
           a.begun == b.begun;
  };
  const auto &now = seen.in_trouble, &before = notified_.in_trouble;
  return seen.computing_ms != notified_.computing_ms ||
         !std::equal(now.begin(), now.end(), before.begin(), before.end(), same);
}

}  // namespace ckpt::agent
