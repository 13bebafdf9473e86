#include "agent/trainers/rank_reader.hpp"

#include <utility>

namespace ckpt::agent {

using core::Rank;

void RankReader::add(Rank rank, std::int64_t pid, std::shared_ptr<const arena::Control> control,
                     std::uint64_t incarnation) {
  sources_.erase(rank);
  sources_.try_emplace(rank, std::move(control), pid);
  watch_.add(rank, incarnation);
}

void RankReader::interrupted(Rank rank, Clock::time_point now) {
  read(rank, now);
  watch_.interrupted(rank, seconds_of(now));
}

void RankReader::remove(Rank rank) {
  sources_.erase(rank);
  watch_.remove(rank);
}

// The last marks were made before the process ended.
void RankReader::died(Rank rank, Clock::time_point now) {
  read(rank, now);
  sources_.erase(rank);
  watch_.died(rank, seconds_of(now));
}

std::optional<std::string> RankReader::paused(Rank rank) const {
  const auto found = sources_.find(rank);
  return found == sources_.end() ? std::nullopt : found->second.log.paused();
}

std::optional<core::RanksWatched> RankReader::look(Clock::time_point now) {
  for (const auto& [rank, source] : sources_) read(rank, now);
  return watch_.look(seconds_of(now));
}

void RankReader::read(Rank rank, Clock::time_point now) {
  const auto found = sources_.find(rank);
  if (found == sources_.end()) return;
  Source& source = found->second;
  events_.clear();
  seen_.marks.clear();
  seen_.lost_marks = !source.log.read(events_);
  for (const arena::CommEvent& event : events_)
    if (const auto mark = arena::mark_of(event, now)) seen_.marks.push_back(*mark);
  seen_.is_paused = source.log.paused().has_value();
  seen_.iteration = source.log.offered();
  seen_.process = source.process ? source.process->state() : '\0';
  watch_.see(rank, seen_, seconds_of(now));
}

}  // namespace ckpt::agent
