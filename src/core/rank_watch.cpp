#include "core/rank_watch.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::core {
namespace {

constexpr double stopped_least_s = 0.5;  // shorter stops are no trouble
constexpr double slept_least_s = 1;      // without a look: this driver did not run
constexpr double looks_missed_max = 4;

TimeMs since_ms(double from_s, double now_s) { return static_cast<TimeMs>(1e3 * std::max(0.0, now_s - from_s)); }

bool is_stopped(char process) { return process == 'T' || process == 't'; }

// A mean varies a little all the time, and that is no news.
bool is_close(std::uint32_t a, std::uint32_t b) {
  const auto [low, high] = std::minmax(a, b);
  return std::uint64_t{high} * 4 <= std::uint64_t{low} * 5;
}

}  // namespace

RankWatch::Watched* RankWatch::find(Rank rank) {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? nullptr : &found->second;
}

void RankWatch::add(Rank rank, std::uint64_t incarnation) {
  ranks_[rank] = Watched{schedule::LearnedDeadline(limits_.deadline), incarnation, 0, -1, {}, {}, 0};
}

void RankWatch::joined(Rank rank, std::uint64_t incarnation) {
  Watched* watched = find(rank);
  if (watched == nullptr) return;
  watched->deadline = schedule::LearnedDeadline(limits_.deadline);
  watched->incarnation = incarnation;
  watched->computing_ms = 0;
}

void RankWatch::interrupted(Rank rank, double now_s) {
  Watched* watched = find(rank);
  if (watched == nullptr || watched->deadline.is_paused()) return;
  watched->deadline.pause(now_s);
  watched->deadline.resume(now_s);
}

void RankWatch::died(Rank rank, double now_s) {
  if (Watched* watched = find(rank)) watched->died_at_s = now_s;
}

void RankWatch::see(Rank rank, const Reading& seen, double now_s) {
  Watched* watched = find(rank);
  if (watched == nullptr) return;
  schedule::LearnedDeadline& deadline = watched->deadline;
  for (const schedule::Mark& mark : seen.marks) deadline.observe(mark);
  if (seen.lost_marks) deadline.lost_marks(now_s);
  if (seen.is_paused != deadline.is_paused()) seen.is_paused ? deadline.pause(now_s) : deadline.resume(now_s);
  watched->iteration = seen.iteration;
  watched->process = seen.process;
  if (!is_stopped(seen.process)) watched->stopped_since_s.reset();
  if (is_stopped(seen.process) && !watched->stopped_since_s) watched->stopped_since_s = now_s;
}

std::optional<RanksWatched> RankWatch::look(double now_s) {
  const double slept_after_s = std::max(slept_least_s, looks_missed_max * limits_.look_every_s);
  const bool has_slept = looked_at_s_ && now_s - *looked_at_s_ > slept_after_s;
  looked_at_s_ = now_s;
  RanksWatched seen;
  for (auto& [rank, watched] : ranks_) {
    if (has_slept) {
      watched.deadline.wait_again(now_s);
      if (watched.stopped_since_s) watched.stopped_since_s = now_s;
    }
    if (watched.incarnation == 0) continue;
    if (auto standing = judge(rank, watched, now_s)) seen.in_trouble.push_back(*standing);
    const auto newest_ms = static_cast<std::uint32_t>(1e3 * watched.deadline.computing_s().value_or(0));
    if (!is_close(newest_ms, watched.computing_ms)) watched.computing_ms = newest_ms;
    if (watched.computing_ms != 0) seen.computing_ms.emplace_back(rank, watched.computing_ms);
  }
  if (!is_news(seen)) return std::nullopt;
  notified_ = seen;
  return seen;
}

std::optional<RankStanding> RankWatch::judge(Rank rank, const Watched& watched, double now_s) const {
  const schedule::LearnedDeadline& deadline = watched.deadline;
  RankStanding standing;
  standing.rank = rank;
  standing.incarnation = watched.incarnation;
  standing.iteration = watched.iteration;
  standing.begun = deadline.begun();
  standing.per_iteration = deadline.per_iteration();
  if (watched.died_at_s) {
    standing.trouble = RankTrouble::dead;
    standing.still_ms = since_ms(*watched.died_at_s, now_s);
    return standing;
  }
  standing.process = watched.process;
  if (deadline.marked_at_s() != 0) standing.still_ms = since_ms(deadline.marked_at_s(), now_s);
  if (watched.stopped_since_s && now_s - *watched.stopped_since_s >= stopped_least_s) {
    standing.trouble = RankTrouble::stopped;
    return standing;
  }
  if (const auto due_s = deadline.due_s(); !due_s || now_s <= *due_s) return std::nullopt;
  standing.trouble = deadline.is_communicating() ? RankTrouble::waiting : RankTrouble::computing;
  return standing;
}

// Times alone are no news. The same holds for the state of a process.
bool RankWatch::is_news(const RanksWatched& seen) const {
  const auto same = [](const RankStanding& a, const RankStanding& b) {
    return a.rank == b.rank && a.incarnation == b.incarnation && a.trouble == b.trouble && a.iteration == b.iteration &&
           a.begun == b.begun && a.per_iteration == b.per_iteration;
  };
  const auto &now = seen.in_trouble, &before = notified_.in_trouble;
  return seen.computing_ms != notified_.computing_ms ||
         !std::equal(now.begin(), now.end(), before.begin(), before.end(), same);
}

}  // namespace ckpt::core
