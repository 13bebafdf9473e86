#include "sim/store.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::sim {

namespace {
constexpr TimeMs late_ms = 100;
}

Store::Store(EventQueue& event_queue, Random random, LeaderWritten leader_written)
    : event_queue_(event_queue), random_(random), leader_written_(std::move(leader_written)) {}

void Store::read_leader(NodeId by, Answer answer) {
  ask(
      by, false, [] {}, [this, answer = std::move(answer)] { answer(leader_read_); });
}

void Store::read_incarnation(NodeId by, Answer answer) {
  ask(
      by, false, [] {}, [this, answer = std::move(answer)] { answer(incarnation_read_); });
}

void Store::swap(NodeId by, const core::SwapLeaderRecord& swap, Answer answer) {
  const auto apply = [this, by, swap] {
    if (leader_read_.revision != swap.expected_revision) return;
    former_leader_reads_.push_back(leader_read_);
    leader_read_ = {leader_read_.revision + 1, swap.record};
    leader_written_(by, leader_read_);
  };
  ask(by, true, apply, [this, answer = std::move(answer)] { answer(leader_read_); });
}

void Store::swap(NodeId by, const core::SwapIncarnationRecord& swap, IncarnationWritten written, Answer answer) {
  const auto apply = [this, swap, written = std::move(written)] {
    if (incarnation_read_.revision != swap.expected_revision) return;
    const core::IncarnationRecordRead before = incarnation_read_;
    former_incarnation_reads_.push_back(incarnation_read_);
    incarnation_read_ = {incarnation_read_.revision + 1, swap.record};
    written(before, incarnation_read_);
  };
  ask(by, true, apply, [this, answer = std::move(answer)] { answer(incarnation_read_); });
}

void Store::write_assignments(NodeId by, const core::AssignmentsName& name, std::size_t number,
                              std::vector<core::RankAssignment> assignments, std::function<void()> done) {
  const auto apply = [this, name, number, assignments = std::move(assignments)] {
    assignments_[name].emplace(number, assignments);
  };
  ask(by, false, apply, std::move(done));
}

void Store::read_assignments(NodeId by, const core::AssignmentsName& name, Answer answer) {
  ask(
      by, false, [] {},
      [this, name, answer = std::move(answer)] {
        answer(core::AssignmentsRead{name, assignments_of(name)});
      });
}

void Store::remove_assignments(NodeId by, const core::RemoveAssignments& removal) {
  const auto apply = [this, removal] {
    std::erase_if(assignments_,
                  [&](const auto& entry) { return entry.first.incarnation < removal.before_incarnation; });
  };
  ask(by, false, apply, [] {});
}

std::vector<core::RankAssignment> Store::assignments_of(const core::AssignmentsName& name) const {
  std::vector<core::RankAssignment> assignments;
  const auto found = assignments_.find(name);
  if (found == assignments_.end()) return assignments;
  for (const auto& [number, some] : found->second) assignments.insert(assignments.end(), some.begin(), some.end());
  return assignments;
}

core::AssignmentTable Store::assignment_table(const core::AssignmentsName& name) const {
  return name.incarnation == 0 ? core::AssignmentTable()
                               : core::AssignmentTable(name.incarnation, assignments_of(name));
}

void Store::ask(NodeId by, bool is_swap, std::function<void()> apply, std::function<void()> answer) {
  const TimeMs wait = outage_left(by);
  TimeMs apply_after = random_.between(1, 10);
  TimeMs answer_after = apply_after + random_.between(1, 10);
  if (wait > 0) {
    // Half of the requests in an outage were carried out before the store stopped answering.
    if (random_.chance(500)) apply_after += wait;
    answer_after += wait;
  }
  if (is_swap && lost_answers_ > 0) {
    --lost_answers_;
    answer_after += random_.between(500, 5000);
  }
  const TimeMs now = event_queue_.now();
  Connection& connection = connections_[by];
  connection.applied_at = std::max(connection.applied_at, now + apply_after);
  connection.answered_at = std::max({connection.answered_at, connection.applied_at, now + answer_after});
  if (connection.answered_at - now > late_ms) connection.late_until = connection.answered_at;
  event_queue_.after(connection.applied_at - now, [this, apply = std::move(apply), era = era_] {
    if (era == era_) apply();
  });
  event_queue_.after(connection.answered_at - now, [this, answer = std::move(answer), era = era_] {
    if (era == era_) answer();
  });
}

TimeMs Store::outage_left(NodeId by) const { return std::max<TimeMs>(0, answers_since(by) - event_queue_.now()); }

TimeMs Store::answers_since(NodeId node) const {
  const auto own = cut_off_until_.find(node);
  const auto connection = connections_.find(node);
  return std::max({out_until_, own == cut_off_until_.end() ? 0 : own->second,
                   connection == connections_.end() ? 0 : connection->second.late_until});
}

void Store::outage(TimeMs duration_ms) { out_until_ = std::max(out_until_, event_queue_.now() + duration_ms); }

void Store::cut_off(NodeId node, TimeMs duration_ms) {
  cut_off_until_[node] = std::max(cut_off_until_[node], event_queue_.now() + duration_ms);
}

void Store::lose_answers(int swaps) { lost_answers_ = swaps; }

Store::Spoiled Store::lose_record() {
  const bool is_leader = random_.chance(500);
  if (is_leader) {
    leader_read_ = {};
  } else {
    incarnation_read_ = {};
  }
  return is_leader ? Spoiled::leader : Spoiled::incarnation_record;
}

Store::Spoiled Store::take_back_record() {
  constexpr std::size_t writes_max = 6;
  const auto take_back = [&](auto& now, auto& former) {
    if (former.empty()) return false;
    const std::size_t back = 1 + random_.below(std::min(writes_max, former.size()));
    now = former[former.size() - back];
    return true;
  };
  if (random_.chance(500)) return take_back(leader_read_, former_leader_reads_) ? Spoiled::leader : Spoiled::nothing;
  return take_back(incarnation_read_, former_incarnation_reads_) ? Spoiled::incarnation_record : Spoiled::nothing;
}

void Store::clear() {
  ++era_;
  former_leader_reads_.clear();
  former_incarnation_reads_.clear();
  leader_read_ = {};
  incarnation_read_ = {};
  assignments_.clear();
}

}  // namespace ckpt::sim
