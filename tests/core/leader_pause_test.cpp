// What a leader takes from silence: nothing from what passed while it did not listen itself.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "lone_node.hpp"

namespace ckpt::core {
namespace {

// However long it was stopped.
TEST(ALeadersPause, MakesNoNodeAbsentThatWasHeardRightBefore) {
  for (const TimeMs pause_ms : {1500, 3000, 60'000, 3'600'000}) {
    LoneLeader leader(3, placement::Protection::of_copies(2));
    for (NodeId node = 0; node < 3; ++node) leader.say(leader.report_of(node));
    const auto present = leader.status().nodes_present;
    ASSERT_GE(present.size(), 3u);
    leader.now += pause_ms;
    leader.handle(Tick{});
    EXPECT_EQ(leader.status().nodes_present, present) << pause_ms;
    // Who stays silent is absent in the end, and the leader itself is there.
    for (int i = 0; i < 30; ++i) {
      leader.now += 100;
      leader.handle(Tick{});
    }
    EXPECT_EQ(leader.status().nodes_present, std::vector<NodeId>{lone_leader}) << pause_ms;
  }
}

// A leader with many pieces may work that long between two events.
TEST(ALeadersPause, MakesNoNodeAbsentIfTheLeaderMayHaveWorkedThatLong) {
  Config config;
  config.pieces_per_ms = 1;
  LoneLeader leader(3, placement::Protection::of_copies(2), config);
  for (NodeId node = 0; node < 3; ++node) {
    Report report = leader.report_of(node);
    for (int i = 0; i < 250; ++i) report.pieces.push_back(piece_of("shard" + std::to_string(i), CheckpointId(1, 1), 3));
    leader.say(report);
  }
  leader.now += 800;
  leader.handle(Tick{});
  const auto present = leader.status().nodes_present;
  ASSERT_EQ(present.size(), 4u);
  leader.now += config.node_timeout_ms / 2 + 600;
  leader.handle(Tick{});
  EXPECT_EQ(leader.status().nodes_present, present);
}

// Its predecessor may live, and merely have failed to write to the store.
TEST(ANewLeader, NotifiesItsPredecessorImmediately) {
  IncarnationRecord incarnation_record;
  incarnation_record.epoch = 5;
  incarnation_record.incarnation = 1;
  incarnation_record.world_size = 1;
  incarnation_record.decision.verdict = Verdict::fresh;
  incarnation_record.protection = placement::Protection::of_copies(2);
  const std::vector<RankAssignment> assignments{{0, 0, 100, "", main_shard(0), private_shard(0)}};
  incarnation_record.assignments = name_of(1, assignments);
  Config config;
  config.node = lone_leader;
  LoneNode node(config);
  node.follow(0, incarnation_record, assignments);
  Directive directive;
  directive.leader = 0;
  directive.epoch = 5;
  directive.incarnation = 1;
  directive.sequence = 1;
  node.receive(0, directive);
  for (int i = 0; i < 100 && !node.status().is_leader; ++i) {
    node.now += 100;
    node.handle(Tick{});
  }
  ASSERT_TRUE(node.status().is_leader);
  EXPECT_EQ(node.newest_to<Directive>(0).epoch, node.status().epoch);
}

// Nobody could follow it yet, and it tells nobody anything before it has renewed its term.
TEST(ALeadersPause, LeavesANewLeaderTheTimeToBeFollowed) {
  LoneLeader leader(3, placement::Protection::of_copies(2));
  leader.now += 3 * Config{}.lease_ms;
  leader.handle(Tick{});
  leader.say(leader.report_of(0));
  EXPECT_NE(leader.newest_to<Directive>(0).sequence, 0u);
}

// A leader of a job whose next incarnation was opened by the one before. Of the last incarnation's members it has yet
// to hear node 2, which alone may know of something newer; rank 2 has come back on node 3. No decision is to wait for
// absent nodes.
class NewLeader : public LoneNode {
 public:
  NewLeader() : LoneNode(impatient()) {
    std::vector<RankAssignment> assignments;
    for (Rank rank = 0; rank < 3; ++rank)
      assignments.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
    IncarnationRecord incarnation_record;
    incarnation_record.incarnation = 2;
    incarnation_record.world_size = 3;
    incarnation_record.protection = placement::Protection::of_copies(2);
    incarnation_record.assignments = name_of(1, assignments);
    lead(incarnation_record, assignments);
  }
  // All that it hears report.
  void hear_all() {
    for (const NodeId node : {0u, 1u, 3u}) {
      const Rank rank = node == 3 ? 2 : node;
      Report report;
      report.node = node;
      report.arena_id = 100 + node;
      report.agent_id = 1;
      report.sequence = ++sequence_;
      report.epoch = status().epoch;
      report.directive = newest_to<Directive>(node).sequence;
      report.roll_call = newest_to<Directive>(node).roll_call;
      report.newest_seen = CheckpointId(1, 4);
      RankReport trainer{rank, 50 + node, 2, 3, main_shard(rank), private_shard(rank)};
      trainer.waiting = true;
      report.ranks.push_back(trainer);
      for (const Rank of : node == 3 ? std::vector<Rank>{2} : std::vector<Rank>{0, 1}) {
        for (const auto& shard : {main_shard(of), private_shard(of)}) {
          report.pieces.push_back(piece_of(shard, CheckpointId(1, 3), 3));
          if (of != 2) report.pieces.push_back(piece_of(shard, CheckpointId(1, 4), 3));
        }
      }
      receive(node, report);
    }
  }

 private:
  static Config impatient() {
    Config config;
    config.node = lone_leader;
    config.protection = placement::Protection::of_copies(2);
    config.node_wait_ms = 0;
    return config;
  }
  std::uint64_t sequence_ = 0;
};

TEST(ANewLeader, DecidesWithoutANodeOnlyAfterListeningForItsFullTimeout) {
  NewLeader leader;
  TimeMs decided_ms = -1;
  const TimeMs began = leader.now;
  for (int i = 0; i < 100 && decided_ms < 0; ++i) {
    leader.hear_all();
    if (leader.incarnation_record().decision.verdict != Verdict::undecided) decided_ms = leader.now - began;
    leader.now += 100;
  }
  EXPECT_GE(decided_ms, Config{}.node_timeout_ms);
  EXPECT_EQ(leader.incarnation_record().decision.checkpoint, CheckpointId(1, 3));
}

// Nodes turn to another leader one after the other. The store does not tell this leader of the new one.
TEST(ALeaderThatIsReplaced, DeclaresNoNodeLostThatLeftItBeforeTheOthers) {
  for (const bool others_stay : {false, true}) {
    LoneLeader leader(3, placement::Protection::of_copies(2));
    const std::array<TimeMs, 3> leaves_at{3000, 3300, 3700};
    std::array<TimeMs, 3> reported_at{};
    std::set<NodeId> lost;
    const TimeMs began = leader.now;
    while (leader.now - began < 7000) {
      const TimeMs passed_ms = leader.now - began;
      for (NodeId node = 0; node < 3; ++node) {
        const bool speaks = passed_ms < leaves_at[node] || (others_stay && node != 0);
        if (!speaks || leader.now - reported_at[node] < 250) continue;
        reported_at[node] = leader.now;
        leader.say(leader.report_of(node));
      }
      leader.now += 20;
      leader.handle(Tick{});
    }
    for (const MemberChanged& changed : leader.all<MemberChanged>()) lost.insert(changed.node);
    EXPECT_EQ(lost, others_stay ? std::set<NodeId>{0} : std::set<NodeId>());
  }
}

// Likewise, and what one of them said before it turned to the other leader was held up.
TEST(ALeaderThatIsReplaced, DelayedReportDoesNotShowThatALeaderIsFollowed) {
  for (const TimeMs held_up_ms : {2600, 3500, 5000}) {
    LoneLeader leader(3, placement::Protection::of_copies(2));
    const auto wait = [&](TimeMs ms) {
      for (const TimeMs until = leader.now + ms; leader.now < until;) {
        leader.now += 20;
        leader.handle(Tick{});
      }
    };
    for (int i = 0; i < 20; ++i) {
      for (NodeId node = 0; node < 3; ++node) leader.say(leader.report_of(node));
      wait(250);
    }
    const Report held_up = leader.report_of(2);
    wait(held_up_ms);  // longer than any is silent that follows it
    leader.say(held_up);
    wait(100);
    EXPECT_TRUE(leader.all<MemberChanged>().empty()) << held_up_ms;
  }
}

}  // namespace
}  // namespace ckpt::core
