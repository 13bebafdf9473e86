// Runs one node on the real core. The store answers at once. The test plays all other nodes, and decides how each
// transfer ends. cluster.hpp runs several nodes.
#pragma once

#include <map>
#include <vector>

#include "cluster.hpp"
#include "core/leader/rank_assignments.hpp"
#include "core/node.hpp"

namespace ckpt::core {

class LoneNode {
 public:
  explicit LoneNode(const Config& config, const Recovered& recovered = {}) : node_(config, 1, recovered) {}

  void handle(const Event& event) {
    for (Effect& effect : node_.handle(event, ++now)) {
      effects.push_back(std::move(effect));
      answer(Effect(effects.back()));
    }
  }
  void receive(NodeId from, const Message& message) { handle(MessageArrived{from, message}); }

  // Nobody leads yet, and the store has this incarnation: the node leads it.
  void lead(const IncarnationRecord& incarnation_record, const std::vector<RankAssignment>& assignments) {
    incarnation_record_ = incarnation_record;
    assignments_ = assignments;
    handle(LeaderRecordRead{});
    handle(IncarnationRecordRead{++incarnation_revision_, incarnation_record_});
  }
  // Another one leads that incarnation.
  void follow(NodeId leader, const IncarnationRecord& incarnation_record,
              const std::vector<RankAssignment>& assignments) {
    incarnation_record_ = incarnation_record;
    assignments_ = assignments;
    follow(leader, incarnation_record.epoch);
    handle(IncarnationRecordRead{++incarnation_revision_, incarnation_record_});
  }
  // Another one leads.
  void follow(NodeId leader, std::uint64_t epoch) { handle(LeaderRecordRead{++leader_revision_, {epoch, leader, 0}}); }

  NodeStatus status() const { return node_.status(); }
  Health health() const { return node_.health(now); }
  const IncarnationRecord& incarnation_record() const { return incarnation_record_; }
  const SlotRef* find(const std::string& shard, CheckpointId checkpoint) const { return node_.find(shard, checkpoint); }

  // All effects of one kind that the node has ever returned.
  template <class Content>
  std::vector<Content> all() const {
    std::vector<Content> found;
    for (const Effect& effect : effects) {
      if (const auto* content = std::get_if<Content>(&effect)) found.push_back(*content);
    }
    return found;
  }
  // The newest message of one kind to node `to`. An empty one if there was none.
  template <class Content>
  Content newest_to(NodeId to) const {
    Content newest;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || send->to != to) continue;
      if (const auto* content = std::get_if<Content>(&send->message)) newest = *content;
    }
    return newest;
  }

  Effects effects;
  TimeMs now = 1000;

 private:
  void answer(const Effect& effect) {
    if (const auto* leader = std::get_if<SwapLeaderRecord>(&effect)) {
      handle(LeaderRecordRead{++leader_revision_, leader->record});
    } else if (const auto* swap = std::get_if<SwapIncarnationRecord>(&effect)) {
      incarnation_record_ = swap->record;
      if (!swap->assignments.empty()) assignments_ = swap->assignments;
      handle(IncarnationRecordRead{++incarnation_revision_, incarnation_record_});
    } else if (std::holds_alternative<ReadAssignments>(effect)) {
      handle(AssignmentsRead{incarnation_record_.assignments, assignments_});
    }
  }

  Node node_;
  IncarnationRecord incarnation_record_;
  std::vector<RankAssignment> assignments_;
  std::uint64_t leader_revision_ = 0;
  std::uint64_t incarnation_revision_ = 0;
};

inline constexpr NodeId lone_leader = 9;

// A node that leads an incarnation and has no rank. There is one rank on each of some other nodes, which a test plays.
class LoneLeader : public LoneNode {
 public:
  LoneLeader(Rank ranks, const placement::Protection& protection, Config config = {})
      : LoneNode(with_number(std::move(config), protection)), ranks_(ranks) {
    std::vector<RankAssignment> assignments;
    for (Rank rank = 0; rank < ranks; ++rank)
      assignments.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
    IncarnationRecord incarnation_record;
    incarnation_record.incarnation = 1;
    incarnation_record.world_size = ranks;
    incarnation_record.decision.verdict = Verdict::fresh;
    incarnation_record.protection = protection;
    incarnation_record.assignments = name_of(1, assignments);
    lead(incarnation_record, assignments);
  }

  // What the node's agent says as a rule: its rank takes part in the incarnation and has tried `attempted` last.
  Report report_of(NodeId node, std::int64_t attempted = -1) {
    Report report;
    report.node = node;
    report.arena_id = 100 + node;
    report.agent_id = 1;
    report.sequence = ++sequences_[node];
    report.epoch = status().epoch;
    const Directive directive = newest_to<Directive>(node);
    report.directive = directive.sequence;
    report.roll_call = directive.roll_call;
    RankReport trainer{node, 50 + node, 1, ranks_, main_shard(node), private_shard(node)};
    trainer.attempted = attempted;
    report.ranks.push_back(trainer);
    return report;
  }
  void say(const Report& report) { receive(report.node, report); }

 private:
  static Config with_number(Config config, const placement::Protection& protection) {
    config.node = lone_leader;
    config.protection = protection;
    return config;
  }

  Rank ranks_;
  std::map<NodeId, std::uint64_t> sequences_;
};

}  // namespace ckpt::core
