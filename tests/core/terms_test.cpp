// Terms of leaders: whose they are, how one follows another, and when a former leader counts as lost.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/epoch.hpp"
#include "lone_node.hpp"

namespace ckpt::core {
namespace {

constexpr NodeId largest_node = (1u << epoch_node_bits) - 1;

Config config_of(NodeId node) {
  Config config;
  config.node = node;
  return config;
}

// ---- Whose they are ----

// The store forgets the first election before anybody else hears of it.
TEST(ATerm, IsNeverSharedByTwoNodes) {
  for (const NodeId other : {1u, 2u, 8u, 700u, largest_node}) {
    LoneNode first{config_of(0)}, second{config_of(other)};
    first.lead({}, {});
    second.lead({}, {});
    ASSERT_TRUE(first.status().is_leader && second.status().is_leader);
    EXPECT_NE(first.status().epoch, second.status().epoch) << other;
  }
}

TEST(ATerm, IsFollowedByANewerOneOnAnyNode) {
  for (const NodeId former : {0u, 5u, largest_node})
    for (const NodeId next : {0u, 5u, largest_node})
      for (const std::uint64_t term : {0u, 1u, 1000u})
        EXPECT_GT(next_epoch(epoch_of(term, former), next), epoch_of(term, former));
}

// Both were elected after the same term, and the one of the lower number hears of the other by the incarnation's
// record.
TEST(ATerm, EndsIfANewerOneWasForgottenByTheStore) {
  LoneNode forgotten{config_of(7)}, leader{config_of(3)};
  forgotten.lead({}, {});
  leader.handle(LeaderRecordRead{});
  leader.handle(IncarnationRecordRead{1, forgotten.incarnation_record()});
  EXPECT_TRUE(leader.status().is_leader);  // of a term after that
  EXPECT_GT(leader.status().epoch, forgotten.status().epoch);
  forgotten.handle(IncarnationRecordRead{2, leader.incarnation_record()});
  EXPECT_FALSE(forgotten.status().is_leader && forgotten.status().epoch < leader.status().epoch);
}

// ---- After a restart ----

// While the record names it, nobody leads, and it reports to nobody.
class ARestartedLeader : public testing::Test {
 protected:
  static constexpr NodeId here = 4;
  static LoneNode restarted(bool standby) {
    Config config = config_of(here);
    config.standby = standby;
    return LoneNode{config};
  }
  static void read(LoneNode& node) {
    node.follow(here, epoch_of(2, here));
    node.handle(IncarnationRecordRead{1, {}});
  }
};

TEST_F(ARestartedLeader, LeadsAgainImmediately) {
  LoneNode node = restarted(false);
  read(node);
  EXPECT_TRUE(node.status().is_leader);
  EXPECT_EQ(term_of(node.status().epoch), 3u);
}

TEST_F(ARestartedLeader, ReleasesTheLeadImmediatelyIfItIsAStandbyNode) {
  LoneNode node = restarted(true);
  read(node);
  const auto swaps = node.all<SwapLeaderRecord>();
  ASSERT_EQ(swaps.size(), 1u);
  EXPECT_EQ(swaps[0].record, (LeaderRecord{epoch_of(2, here), no_node, 1}));
  EXPECT_FALSE(node.status().is_leader);
  EXPECT_EQ(node.status().leader, no_node);

  LoneNode other{config_of(here + 1)};
  other.handle(LeaderRecordRead{2, swaps[0].record});
  other.handle(IncarnationRecordRead{1, {}});
  EXPECT_TRUE(other.status().is_leader);
}

// ---- The former leader ----

// A node that follows a leader whose record stays as it is; both are members of an incarnation, and so is a third node.
class AFormerLeader : public testing::Test {
 protected:
  static constexpr NodeId here = 0, third = 1, former = 2;

  AFormerLeader() {
    for (const NodeId each : {here, third, former})
      assignments_.push_back({each, each, each == here ? 0u : 100u + each, "", main_shard(each), private_shard(each)});
    incarnation_record_.incarnation = 1;
    incarnation_record_.world_size = 3;
    incarnation_record_.epoch = epoch_of(1, former);
    incarnation_record_.decision.verdict = Verdict::fresh;
    incarnation_record_.assignments = name_of(1, assignments_);
    node_.follow(former, incarnation_record_, assignments_);
  }

  // The third node reports to the present leader.
  void pass(TimeMs ms, bool former_speaks) {
    for (const TimeMs end = node_.now + ms; node_.now < end;) {
      node_.now += 100;
      if (former_speaks) node_.receive(former, order());
      node_.handle(Tick{});
      if (node_.status().is_leader) node_.receive(third, report());
    }
  }
  void pass_until_elected(bool former_speaks) {
    while (!node_.status().is_leader && node_.now < 20'000) pass(100, former_speaks);
    ASSERT_TRUE(node_.status().is_leader);
  }
  bool is_called_lost() const {
    const auto changes = node_.all<MemberChanged>();
    return std::any_of(changes.begin(), changes.end(),
                       [](const auto& each) { return each.change == Change::lost && each.node == former; });
  }

  LoneNode node_{config_of(here)};

 private:
  Directive order() {
    Directive directive;
    directive.leader = former;
    directive.epoch = incarnation_record_.epoch;
    directive.sequence = ++sequence_;
    return directive;
  }
  Report report() {
    Report report;
    report.node = third;
    report.arena_id = 100 + third;
    report.agent_id = 1;
    report.sequence = ++sequence_;
    report.epoch = node_.status().epoch;
    report.directive = node_.newest_to<Directive>(third).sequence;
    return report;
  }

  std::vector<RankAssignment> assignments_;
  IncarnationRecord incarnation_record_;
  std::uint64_t sequence_ = 0;
};

TEST_F(AFormerLeader, IsSoonDeclaredLostIfItsOrdersEndedWithItsLease) {
  pass(100, true);
  pass_until_elected(false);
  pass(1000, false);
  EXPECT_TRUE(is_called_lost());
}

// The store alone does not hear of it.
TEST_F(AFormerLeader, IsNotDeclaredLostWhileItGivesOrders) {
  pass(1200, true);
  pass_until_elected(false);
  pass(100, true);
  pass(1400, false);
  EXPECT_FALSE(is_called_lost());
}

TEST_F(AFormerLeader, IsNotDeclaredLostSoonAfterItGaveOrders) {
  pass_until_elected(true);
  pass(1500, false);
  EXPECT_FALSE(is_called_lost());
  pass(1500, false);
  EXPECT_TRUE(is_called_lost());
}

// This node has never heard of it but from the store, and so cannot tell since when it is silent.
TEST_F(AFormerLeader, IsNotSoonDeclaredLostByANodeThatNeverHeardIt) {
  pass_until_elected(false);
  pass(1500, false);
  EXPECT_FALSE(is_called_lost());
  pass(1500, false);
  EXPECT_TRUE(is_called_lost());
}

}  // namespace
}  // namespace ckpt::core
