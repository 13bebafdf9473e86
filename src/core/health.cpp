#include "core/health.hpp"

#include <algorithm>
#include <tuple>

namespace ckpt::core {

namespace {

constexpr TimeMs iterations_allowed = 4;  // allowed without a commit

}  // namespace

bool Health::says_the_same(const Health& other) const {
  const auto facts_of = [](const Health& health) {
    return std::tie(health.standing, health.cause, health.node, health.rank, health.status, health.detail,
                    health.copies_now, health.copies, health.parity_now, health.parity);
  };
  return facts_of(*this) == facts_of(other);
}

void SnapshotInterval::reached(std::int64_t iteration, TimeMs now) {
  if (iteration <= furthest_) return;
  if (furthest_ >= 0) intervals_ms_[count_++ % kept] = now - reached_at_;
  furthest_ = iteration;
  reached_at_ = now;
}

void SnapshotInterval::forget() {
  inherited_ms_ = interval_ms();
  count_ = 0;
  furthest_ = -1;
}

TimeMs SnapshotInterval::interval_ms() const {
  if (count_ == 0) return inherited_ms_;
  auto sorted = intervals_ms_;
  const std::size_t known = std::min(count_, kept);
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(known);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(known / 2);
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

void CommitClock::observe(std::uint64_t incarnation, CheckpointId commit, TimeMs now) {
  if (!since_) since_ = now;
  if (begin(incarnation, commit)) since_ = now;
  const bool had_commit = has_commit_;
  if (!note(commit)) return;
  last_gap_ms_ = had_commit ? now - *since_ : 0;
  since_ = now;
}

void CommitClock::observe_late(std::uint64_t incarnation, CheckpointId commit) {
  begin(incarnation, commit);
  note(commit);
}

// Returns false if the incarnation is already known.
bool CommitClock::begin(std::uint64_t incarnation, CheckpointId commit) {
  if (incarnation == 0 || incarnation == incarnation_) return false;
  incarnation_ = incarnation;
  has_commit_ = false;
  last_gap_ms_ = 0;
  newest_ = commit;  // from before; nobody here knows its age
  return true;
}

// Returns false if the commit is not of this incarnation, or already known.
bool CommitClock::note(CheckpointId commit) {
  if (incarnation_ == 0 || commit.incarnation() != incarnation_ || commit <= newest_) return false;
  newest_ = commit;
  has_commit_ = true;
  return true;
}

TimeMs allowed_ms(TimeMs unprotected_after_ms, TimeMs pace_ms) {
  return std::max(unprotected_after_ms, iterations_allowed * pace_ms);
}

}  // namespace ckpt::core
