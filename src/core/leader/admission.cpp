#include "core/leader/admission.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/plausible.hpp"

namespace ckpt::core {

void AdmissionControl::on_new_incarnation() {
  bindings_.clear();
  contradicted_since_.reset();
  refuses_others_ = false;
}

void AdmissionControl::reconcile(const Halts& halts, bool has_listened, TimeMs now, Effects& effects) {
  refresh_bindings();
  is_held_back_ = false;
  bool is_contradicted = false;
  // Order: first members of this incarnation that a new leader has not met yet, then newcomers, then trainers that wait
  // since an incarnation that was never decided. The last ones are carried over.
  for (const auto& [node, peer] : view_.peers) {
    if (!view_.is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation != view_.record->incarnation || rank.incarnation == 0 || superseded_.contains(rank.instance))
        continue;
      if (is_misplaced(peer, rank)) {
        open_incarnation(rank, now, effects);
      } else {
        if (!bindings_.contains(rank.rank)) bindings_.emplace(rank.rank, Binding{node, &peer, rank});
      }
    }
  }
  const bool may_end = halts.may_end(view_, has_listened, now);
  for (const auto& [node, peer] : view_.peers) {
    if (!view_.is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation != 0 || superseded_.contains(rank.instance)) continue;
      admit_newcomer(peer, rank, may_end, now, effects);
      is_contradicted = is_contradicted || contradicts_others(rank);
    }
  }
  if (!is_contradicted) contradicted_since_.reset();
  if (is_contradicted && !contradicted_since_) contradicted_since_ = now;
  refuses_others_ = is_contradicted && now - *contradicted_since_ >= 2 * view_.config.node_timeout_ms;
  if (view_.record->decision.verdict != Verdict::undecided) return;
  for (const auto& [node, peer] : view_.peers) {
    if (!view_.is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      const bool carried = rank.incarnation != 0 && rank.incarnation < view_.record->incarnation && rank.waiting;
      if (carried && rank.world_size == view_.record->world_size && !superseded_.contains(rank.instance)) {
        bindings_.try_emplace(rank.rank, Binding{node, &peer, rank});
      }
    }
  }
}

void AdmissionControl::refresh_bindings() {
  const bool undecided = view_.record->decision.verdict == Verdict::undecided;
  for (auto it = bindings_.begin(); it != bindings_.end();) {
    Binding& binding = it->second;
    const Report& report = binding.peer->report;
    const auto entry = std::find_if(report.ranks.begin(), report.ranks.end(), [&](const RankReport& rank) {
      return rank.rank == it->first && rank.instance == binding.rank.instance;
    });
    if (entry != report.ranks.end()) binding.rank = *entry;
    const bool gone = report.epoch == view_.epoch && (entry == report.ranks.end() || serves_older_incarnation(*entry));
    // Before the decision, a trainer that is gone makes room for the next one. After it, the incarnation does not
    // change.
    const bool leaves = undecided ? gone : is_misplaced(*binding.peer, binding.rank);
    it = leaves ? bindings_.erase(it) : std::next(it);
  }
}

// A decision may be written late, after a rank has moved to another node. That node does not belong to the incarnation,
// so the rank needs a new incarnation.
bool AdmissionControl::is_misplaced(const Peer& peer, const RankReport& rank) const {
  if (!view_.has_begun()) return false;
  if (rank.rank >= view_.assignment_table.assignments().size()) return true;
  const RankAssignment& assignment = view_.assignment_table.assignments()[rank.rank];
  const bool has_its_place = assignment.node == peer.report.node && assignment.main_shard == rank.main_shard &&
                             assignment.private_shard == rank.private_shard;
  return !has_its_place || !view_.assignment_table.is_member(peer.report.node, peer.report.arena_id);
}

// It got the checkpoint of an older incarnation before it could be carried over into this one.
bool AdmissionControl::serves_older_incarnation(const RankReport& rank) const {
  return rank.incarnation != 0 && rank.incarnation < view_.record->incarnation && !rank.waiting;
}

// The others may be of a start that was ended, and its end not known yet.
bool AdmissionControl::contradicts_others(const RankReport& newcomer) const {
  return view_.is_undecided() && view_.record->incarnation != 0 && newcomer.world_size != view_.record->world_size;
}

void AdmissionControl::admit_newcomer(const Peer& peer, const RankReport& rank, bool may_end, TimeMs now,
                                      Effects& effects) {
  const auto bound = bindings_.find(rank.rank);
  if (bound != bindings_.end() && bound->second.rank.instance == rank.instance) return;
  const bool second_hello = bound != bindings_.end();
  const bool decided = view_.record->decision.verdict != Verdict::undecided;
  // A job without a record may have checkpoints on storage. Its incarnations must be newer than those.
  if (view_.record->incarnation == 0 && view_.config.storage && !storage_.knows_incarnations()) return;
  // Nobody is left of the start that it was opened for.
  const bool is_deserted = contradicts_others(rank) &&
                           std::none_of(bindings_.begin(), bindings_.end(),
                                        [&](const auto& entry) { return view_.is_present(*entry.second.peer, now); });
  is_held_back_ = is_held_back_ || (view_.has_begun() && !may_end);
  if (is_held_back_) return;
  if (view_.record->incarnation == 0 || second_hello || decided || is_deserted) {
    open_incarnation(rank, now, effects);
    return;
  }
  if (rank.world_size == view_.record->world_size) bindings_.emplace(rank.rank, Binding{peer.report.node, &peer, rank});
}

void AdmissionControl::open_incarnation(const RankReport& newcomer, TimeMs now, Effects& effects) {
  const auto bound = bindings_.find(newcomer.rank);
  if (bound != bindings_.end() && bound->second.rank.instance != newcomer.instance) {
    superseded_.insert(bound->second.rank.instance);
  }
  open_next(newcomer.world_size, now, effects);
}

void AdmissionControl::open_next(std::uint32_t world_size, TimeMs now, Effects& effects) {
  if (!record_writer_.may_swap(now)) return;
  IncarnationRecord next = *view_.record;
  next.incarnation = std::max({view_.record->incarnation, newest_written(), newest_served()}) + 1;
  if (next.incarnation > CheckpointId::incarnation_max) {
    alarm_ = "the job cannot begin another incarnation: " + std::to_string(view_.record->incarnation) +
             " is the highest number. Give the job another name";
    return;
  }
  next.world_size = world_size;
  next.decision = {};
  record_writer_.swap(std::move(next), now, effects);
}

std::uint64_t AdmissionControl::newest_written() const {
  std::uint64_t newest = 0;
  const auto consider = [&](std::uint64_t claimed) {
    if (is_plausible_incarnation(view_.record->incarnation, claimed)) newest = std::max(newest, claimed);
  };
  for (const auto& [node, peer] : view_.peers) {
    consider(peer.report.highest_commit.incarnation());
    consider(peer.report.newest_seen.incarnation());
    for (const PieceInfo& piece : peer.report.pieces) consider(piece.checkpoint.incarnation());
  }
  consider(storage_.newest_incarnation());
  return newest;
}

// The newest incarnation that any rank takes part in.
std::uint64_t AdmissionControl::newest_served() const {
  std::uint64_t newest = newest_notified();
  for (const auto& [node, peer] : view_.peers)
    for (const RankReport& rank : peer.report.ranks) {
      if (is_plausible_incarnation(view_.record->incarnation, rank.incarnation))
        newest = std::max(newest, rank.incarnation);
    }
  return newest;
}

// The newest decided incarnation that any node knows of.
std::uint64_t AdmissionControl::newest_notified() const {
  std::uint64_t newest = 0;
  for (const auto& [node, peer] : view_.peers)
    if (is_plausible_incarnation(view_.record->incarnation, peer.report.newest_known_incarnation))
      newest = std::max(newest, peer.report.newest_known_incarnation);
  return newest;
}

// The record is older than what nodes know: it was lost or set back, and the leader that knew the newer one is gone.
// Nobody can lead the incarnation that is missing. The next one restores what that one captured.
bool AdmissionControl::is_outlived() const {
  const bool was_decided = view_.record->decision.verdict == Verdict::undecided && view_.record->incarnation != 0 &&
                           newest_notified() == view_.record->incarnation;
  return was_decided || newest_served() > view_.record->incarnation;
}

bool AdmissionControl::follow_outlived(TimeMs now, Effects& effects) {
  if (!record_writer_.may_swap(now) || newest_world_size() == 0 || !is_outlived()) return false;
  effects.push_back(
      Notice{"the coordination store lost the record of incarnation " +
             std::to_string(std::max(view_.record->incarnation, newest_served())) +
             " of the job, or has an older one, and no remaining agent knows its ranks; the job continues with a new "
             "incarnation"});
  open_next(newest_world_size(), now, effects);
  return true;
}

std::uint32_t AdmissionControl::newest_world_size() const {
  std::uint32_t world_size = view_.record->world_size;
  for (const auto& [node, peer] : view_.peers)
    for (const RankReport& rank : peer.report.ranks) {
      if (world_size == 0) world_size = rank.world_size;
    }
  return world_size;
}

std::optional<Refusal> AdmissionControl::refusal_of(NodeId node, const RankReport& rank) const {
  const auto bound = bindings_.find(rank.rank);
  const bool is_bound = bound != bindings_.end() && bound->second.rank.instance == rank.instance;
  if (is_bound && !serves_older_incarnation(rank)) return std::nullopt;
  const bool undecided = view_.record->decision.verdict == Verdict::undecided;
  const bool newcomer = rank.incarnation == 0;
  if (newcomer && refuses_others_ && contradicts_others(rank)) {
    return Refusal{rank.rank, rank.instance, false, view_.record->incarnation,
                   "rank " + std::to_string(rank.rank) + " on node " + std::to_string(node) +
                       " says that the job has " + std::to_string(rank.world_size) + " ranks, the others say " +
                       std::to_string(view_.record->world_size) + ": start all ranks with one world_size"};
  }
  const bool outlived = !newcomer && rank.incarnation < view_.record->incarnation && !(rank.waiting && undecided);
  if (outlived || superseded_.contains(rank.instance)) {
    return Refusal{rank.rank, rank.instance, true, view_.record->incarnation,
                   "rank " + std::to_string(rank.rank) + " was superseded by incarnation " +
                       std::to_string(view_.record->incarnation) +
                       (view_.config.halts ? " of the job: let it rejoin, or stop this process"
                                           : " of the job: stop this process")};
  }
  return std::nullopt;
}

}  // namespace ckpt::core
