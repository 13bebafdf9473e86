// The leader's verdict on the whole job: what delays commits, and where protection is less than asked for.
#include <algorithm>
#include <utility>

#include "core/leader/leader.hpp"
#include "core/lists.hpp"

namespace ckpt::core {

void Leader::reconcile_health(TimeMs now) {
  const CheckpointId commit = commits_.newest_known();
  const std::uint64_t incarnation_before = clock_.incarnation();
  // Commits that it learns of from others were made before its term.
  clock_.observe(view_.has_begun() ? view_.record->incarnation : 0, commits_.own_commit(), now);
  if (clock_.incarnation() != incarnation_before) snapshot_interval_.forget();
  snapshot_interval_.reached(view_.furthest_attempted(), now);
  time_commit(now);

  health_.copies_now = view_.has_begun() ? commits_.copies_now() : 0;
  health_.parity_now = view_.has_begun() ? commits_.parity_now() : 0;
  Health next = health_;
  next.pace_ms = snapshot_interval_.interval_ms();
  next.capture_every = capture_every();
  next.allowed_ms = allowed_ms(view_.config.unprotected_after_ms, next.pace_ms * next.capture_every);
  next.at_risk_ms = clock_.quiet_ms(now);
  const bool is_overdue = next.at_risk_ms > next.allowed_ms;
  Obstacle obstacle = find_obstacle(now, is_overdue);
  next.standing = is_overdue || obstacle.cause == Cause::state_lost ? Standing::unprotected
                  : obstacle.cause != Cause::none                   ? Standing::degraded
                                                                    : Standing::is_protected;
  next.cause = obstacle.cause;
  next.node = obstacle.node;
  next.rank = obstacle.rank;
  next.status = obstacle.status;
  next.detail = std::move(obstacle.detail);
  next.committed = commit ? commit : view_.has_begun() ? view_.record->restored : CheckpointId();
  const bool is_of_this_incarnation = commit.incarnation() == view_.record->incarnation;
  const CheckpointId base = is_of_this_incarnation ? commit : view_.record->decision.checkpoint;
  const std::int64_t known_good = base ? base.iteration() : -1;
  next.iterations_at_risk = std::max<std::int64_t>(0, view_.furthest_attempted() - known_good);
  next.copies = view_.record->protection.copies;
  next.parity = view_.record->protection.rows;
  if (next.standing != health_.standing) standing_since_ = now;
  next.lasts_ms = now - standing_since_;
  health_ = std::move(next);
}

// Null: the rank has no trainer any more, or its node does not answer.
const RankReport* Leader::report_of(Rank rank) const {
  const auto bound = view_.bindings.find(rank);
  if (bound == view_.bindings.end()) return nullptr;
  for (const RankReport& report : bound->second.peer->report.ranks) {
    if (report.rank == rank && report.instance == bound->second.rank.instance) return &report;
  }
  return nullptr;
}

// ---- Causes that delay commits ----

Leader::Obstacle Leader::find_obstacle(TimeMs now, bool is_overdue) const {
  const bool has_ranks = std::any_of(view_.present.begin(), view_.present.end(),
                                     [](const Report* report) { return !report->ranks.empty(); });
  if (!has_ranks && view_.missing.empty()) return {Cause::no_trainers};
  if (!view_.has_begun()) return obstacle_of_restore();
  if (auto found = obstacle_of_members(now); found.cause != Cause::none) return found;
  if (auto found = obstacle_of_trainers(); found.cause != Cause::none) return found;
  if (is_overdue) {
    if (auto found = obstacle_of_copies(); found.cause != Cause::none) return found;
    return obstacle_of_progress();
  }
  return lesser_trouble(now);
}

Leader::Obstacle Leader::obstacle_of_restore() const {
  const Decision& decision = view_.record->decision;
  if (decision.verdict == Verdict::lost || decision.verdict == Verdict::mismatch)
    return {Cause::state_lost, no_node, no_rank, decision.text};
  // A rank that nobody heard of is probably on a node whose token others refuse.
  if (!view_.is_complete_incarnation() && !distrusted_.empty()) return {Cause::wrong_token, distrusted_.front()};
  if (view_.record->incarnation == 0) return {Cause::no_trainers};
  for (Rank rank = 0; rank < view_.record->world_size; ++rank) {
    const auto bound = view_.bindings.find(rank);
    if (bound != view_.bindings.end() && bound->second.rank.waiting) continue;
    return {Cause::waits_for_ranks, bound == view_.bindings.end() ? no_node : bound->second.node, rank};
  }
  if (!view_.missing.empty())
    return {contains(distrusted_, view_.missing.front()) ? Cause::wrong_token : Cause::waits_for_nodes,
            view_.missing.front()};
  if (const std::string trouble = storage_.why_unknown(view_.present); !trouble.empty())
    return {Cause::waits_for_storage, no_node, no_rank, trouble};
  return {Cause::waits_for_state};
}

// A new leader hears its members one after the other. A member that it has not heard yet is no news.
Leader::Obstacle Leader::obstacle_of_members(TimeMs now) const {
  if (!view_.missing.empty() && losses_.has_listened(now)) {
    if (contains(distrusted_, view_.config.node)) return {Cause::wrong_token, view_.config.node};
    const auto distrusted = std::find_if(view_.missing.begin(), view_.missing.end(),
                                         [&](NodeId node) { return contains(distrusted_, node); });
    if (distrusted != view_.missing.end()) return {Cause::wrong_token, *distrusted};
    return {Cause::node_silent, view_.missing.front()};
  }
  for (Rank rank = 0; rank < view_.record->world_size; ++rank) {
    const auto bound = view_.bindings.find(rank);
    const bool is_known = bound != view_.bindings.end() && view_.is_present(*bound->second.peer, now);
    if (bound == view_.bindings.end() && losses_.has_listened(now)) return {Cause::rank_gone, no_node, rank};
    if (is_known && report_of(rank) == nullptr) return {Cause::rank_gone, bound->second.node, rank};
  }
  if (!view_.record->replacements.empty()) return {Cause::replacement, view_.record->replacements.front().lost};
  return {};
}

Leader::Obstacle Leader::obstacle_of_trainers() const {
  if (!view_.alarm.empty()) return {Cause::ranks_differ, no_node, no_rank, view_.alarm};
  const auto find = [&](Cause cause, auto is_it) -> Obstacle {
    for (const auto& [rank, binding] : view_.bindings) {
      if (is_it(binding.rank)) return {cause, binding.node, rank, {}, binding.rank.failed};
    }
    return {};
  };
  if (auto found = find(Cause::rank_stopped, [](const RankReport& rank) { return rank.is_stopped; });
      found.cause != Cause::none)
    return found;
  if (auto found = find(Cause::rank_restoring, [](const RankReport& rank) { return rank.waiting; });
      found.cause != Cause::none) {
    if (!restore_progress_.stranded().empty())
      return {Cause::waits_for_state, found.node, found.rank, restore_progress_.stranded()};
    if (restore_progress_.is_reading_storage())
      return {Cause::waits_for_storage, found.node, found.rank, storage_.trouble()};
    return found;
  }
  return find(Cause::rank_fails, [](const RankReport& rank) { return rank.failed != 0; });
}

// Among checkpoints that all ranks have captured: the node that lacks its copy.
Leader::Obstacle Leader::obstacle_of_copies() const {
  const CheckpointId commit = commits_.newest_known();
  for (const auto& [checkpoint, pieces] : view_.inventory) {
    if (checkpoint.incarnation() != view_.record->incarnation || checkpoint <= commit ||
        contains(commits_.abandoned(), checkpoint))
      continue;
    const auto lack = first_lack(checkpoint, pieces);
    if (!lack || lack->is_capture) continue;
    const auto peer = view_.peers.find(lack->node);
    const FetchTrouble trouble = peer == view_.peers.end() ? FetchTrouble::none : peer->second.report.fetch_trouble;
    switch (trouble) {
      case FetchTrouble::no_space:
        return {Cause::copies_do_not_fit, lack->node};
      case FetchTrouble::failed:
        return {Cause::copies_missing, lack->node, no_rank, "its transfers fail"};
      case FetchTrouble::corrupt:
        return {Cause::copies_missing, lack->node, no_rank, "what it receives is damaged"};
      case FetchTrouble::none:
        return {Cause::copies_missing, lack->node};
    }
  }
  return {};
}

Leader::Obstacle Leader::obstacle_of_progress() const {
  const std::int64_t furthest = view_.furthest_attempted();
  const CheckpointId commit = commits_.newest_known();
  const bool is_of_this_incarnation = commit.incarnation() == view_.record->incarnation;
  for (const auto& [rank, binding] : view_.bindings) {
    if (binding.rank.attempted < furthest) return {Cause::rank_behind, binding.node, rank};
  }
  if (furthest < 0 || (is_of_this_incarnation && furthest <= commit.iteration())) return {Cause::no_snapshots};
  return {Cause::stalled};
}

namespace {

const char* name_of(CaptureMode mode) {
  return mode == CaptureMode::every ? "every" : mode == CaptureMode::jit ? "jit" : "auto";
}

std::string halt_options(bool halts, CaptureMode capture, std::uint32_t capture_every) {
  return std::string("on_suspicion=") + (halts ? "halt" : "report") + " capture=" + name_of(capture) +
         " capture_every=" + std::to_string(capture_every);
}

}  // namespace

// The ranks decide alike: each knows its options and whether main shards are replicated.
std::uint32_t Leader::capture_every() const {
  const bool is_in_each = view_.config.capture == CaptureMode::automatic && !view_.places.is_replicated();
  return is_in_each ? 1 : view_.config.capture_every;
}

// A rank with on_suspicion=report never answers a halt. If ranks differ in capture_every, only those iterations are
// committed that all of them capture. So every rank is compared with the lowest one, and with the leader's own agent,
// which would have to halt the job.
Leader::Obstacle Leader::other_options() const {
  if (view_.bindings.empty()) return {};
  const auto said_by = [](const RankReport& rank) {
    return halt_options(rank.halts, rank.capture, rank.capture_every);
  };
  const auto& [first, its] = *view_.bindings.begin();
  for (const auto& [rank, binding] : view_.bindings) {
    if (said_by(binding.rank) != said_by(its.rank))
      return {Cause::other_options, binding.node, rank,
              said_by(binding.rank) + ", rank " + std::to_string(first) + " has " + said_by(its.rank)};
  }
  const std::string own = halt_options(view_.config.halts, view_.config.capture, view_.config.capture_every);
  if (said_by(its.rank) == own) return {};
  return {Cause::other_options, its.node, first, said_by(its.rank) + ", the leading agent has " + own};
}

// The job commits, but its protection is less than asked for.
Leader::Obstacle Leader::lesser_trouble(TimeMs now) const {
  for (const Report* report : view_.present) {
    if (!view_.assignment_table.is_member(report->node, report->arena_id)) continue;
    if (report->protection != view_.record->protection)
      return {Cause::other_protection, report->node, no_rank,
              placement::name(report->protection) + ", the job has " + placement::name(view_.record->protection)};
  }
  if (Obstacle other = other_options(); other.cause != Cause::none) return other;
  if (view_.config.capture == CaptureMode::jit && view_.places.is_arranged() && !view_.places.is_replicated())
    return {Cause::no_replica, view_.places.lone_node(), no_rank, "main shard " + view_.places.lone_shard()};
  for (const Report* report : view_.present) {
    if (report->coordination_fails) return {Cause::coordination_fails, report->node};
  }
  if (const std::string trouble = view_.config.storage ? storage_.trouble() : storage_.why_unknown(view_.present);
      !trouble.empty())
    return {Cause::storage_fails, no_node, no_rank, trouble};
  if (!clock_.has_commit()) return {Cause::beginning};
  if (clock_.last_gap_ms() >
      allowed_ms(view_.config.unprotected_after_ms, snapshot_interval_.interval_ms() * capture_every())) {
    const bool is_known = health_.slowest_node != no_node;
    return {Cause::too_slow, is_known ? health_.slowest_node : no_node};
  }
  // Until a new leader has heard the nodes that are present, all of them seem to have lost their copies.
  const bool has_listing = view_.missing.empty() || now - view_.elected_at > view_.config.node_timeout_ms;
  if (!has_listing || !view_.inventory.contains(commits_.newest_known())) return {};
  if (health_.copies_now < view_.record->protection.copies) return {Cause::fewer_copies};
  if (health_.parity_now < view_.record->protection.rows) return {Cause::fewer_parity};
  return {};
}

// ---- The slowest step ----

// The first place that does not have the checkpoint yet.
std::optional<Leader::Lack> Leader::first_lack(CheckpointId checkpoint, const Pieces& pieces) const {
  std::optional<Lack> copy;
  for (const auto& [shard, place] : view_.places.of(checkpoint)) {
    const auto found = pieces.find(shard);
    const auto is_there = [&](NodeId node) { return found != pieces.end() && is_held_by(found->second, node); };
    for (const NodeId node : place.capturers) {
      if (!is_there(node)) return Lack{node, true};
    }
    for (const NodeId node : place.holders) {
      if (!copy && !is_there(node)) copy = Lack{node, false};
    }
  }
  return copy;
}

// Times one checkpoint at a time, from its first reported piece on.
void Leader::time_commit(TimeMs now) {
  if (!view_.has_begun() || !view_.places.is_arranged()) return timing_.reset();
  if (timing_ && timing_->checkpoint.incarnation() != view_.record->incarnation) timing_.reset();
  if (timing_ && commits_.committed() >= timing_->checkpoint) {
    const TimeMs captured_at = timing_->captured_at.value_or(now);
    const TimeMs capture_ms = captured_at - timing_->begun_at, copy_ms = now - captured_at;
    health_.slowest_is_capture = capture_ms > copy_ms;
    health_.slowest_ms = std::max(capture_ms, copy_ms);
    health_.slowest_node = health_.slowest_is_capture ? timing_->last_capturer : timing_->last_holder;
    timing_.reset();
  }
  if (!timing_) {
    if (view_.inventory.empty()) return;
    const CheckpointId newest = view_.inventory.rbegin()->first;
    if (newest.incarnation() != view_.record->incarnation || newest <= commits_.committed()) return;
    timing_ = Timing{newest, now, {}, no_node, no_node};
  }
  const auto pieces = view_.inventory.find(timing_->checkpoint);
  if (pieces == view_.inventory.end()) return timing_.reset();
  const auto lack = first_lack(timing_->checkpoint, pieces->second);
  if (!lack) return;
  if (!lack->is_capture && !timing_->captured_at) timing_->captured_at = now;
  (lack->is_capture ? timing_->last_capturer : timing_->last_holder) = lack->node;
}

}  // namespace ckpt::core
