#include "core/relay.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

// ---- Groups ----

std::vector<Report> reports_of(const std::vector<NodeId>& nodes) {
  std::vector<Report> reports(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) reports[i].node = nodes[i];
  return reports;
}

Groups groups_of(std::size_t nodes, const std::vector<Report>& present, NodeId leader_node) {
  std::vector<const Report*> borrowed;
  for (const Report& report : present) borrowed.push_back(&report);
  return {nodes, borrowed, leader_node};
}

TEST(Groups, LowestPresentNodeIsTheGroupsRelay) {
  const auto present = reports_of({2, 3, 5, 6, 7, 8});
  const Groups groups = groups_of(9, present, 8);  // of four
  for (const NodeId node : {1u, 5u}) EXPECT_EQ(groups.relay_of(node), 5u) << node;
  for (const NodeId node : {2u, 6u}) EXPECT_EQ(groups.relay_of(node), 2u) << node;
  for (const NodeId node : {3u, 7u}) EXPECT_EQ(groups.relay_of(node), 3u) << node;
}

TEST(Groups, LeaderIsNoRelayAndHasNone) {
  const auto present = reports_of({0, 1, 2, 3, 4, 8});
  const Groups groups = groups_of(9, present, 0);
  EXPECT_EQ(groups.relay_of(0), no_node);
  EXPECT_EQ(groups.relay_of(8), 4u);
  EXPECT_EQ(groups_of(9, reports_of({8}), 8).relay_of(4), no_node);  // nobody else is there
}

// Numbered one after the other, or as names get their numbers: most of them close together, and the others far apart.
TEST(Groups, NumberAndSizeGrowAsTheSquareRootOfNodes) {
  std::mt19937 random(7);
  for (const NodeId nodes : {64u, 100u, 1000u, 10'000u}) {
    for (const bool have_gaps : {false, true}) {
      std::set<NodeId> numbers;
      for (NodeId node = 0; numbers.size() < nodes; ++node)
        numbers.insert(have_gaps && node % 3 == 0 ? static_cast<NodeId>(random() % (16 * nodes)) : node);
      const std::vector<NodeId> all(numbers.begin(), numbers.end());
      const auto present = reports_of(all);
      const Groups groups = groups_of(nodes, present, all[0]);
      std::map<NodeId, int> members;
      for (const NodeId node : all) ++members[groups.relay_of(node)];
      members.erase(no_node);  // the leader
      EXPECT_LE(members.size() * members.size(), 2 * nodes) << nodes;
      for (const auto& [relay, count] : members) EXPECT_LE(count * count, 9 * static_cast<int>(nodes)) << nodes;
    }
  }
}

// ---- The forwarder ----

constexpr NodeId leader_node = 0;
constexpr NodeId here = 1;

struct RelayBatches : testing::Test {
  static Relay make() {
    Config config;
    config.node = here;
    return Relay(config);
  }
  static Report report_of(NodeId node, std::uint64_t sequence, std::size_t pieces = 0) {
    Report report;
    report.node = node;
    report.agent_id = 1;
    report.sequence = sequence;
    report.epoch = 7;
    for (std::size_t i = 0; i < pieces; ++i)
      report.pieces.push_back(piece_of("shard" + std::to_string(i), CheckpointId(1, 1), 1));
    return report;
  }
  // What the relay sends when it is given the report.
  Effects give(NodeId from, const Report& report, TimeMs now) {
    Effects effects;
    relay.on(from, report, now, effects);
    relay.reconcile(now, effects);
    return effects;
  }
  Effects reconcile(TimeMs now) {
    Effects effects;
    relay.reconcile(now, effects);
    return effects;
  }
  void acknowledge(NodeId from) {
    Effects effects;
    relay.on(from, DirectiveBatch{}, effects);
  }
  // Where a report of this node goes.
  NodeId say(TimeMs now) {
    Effects effects;
    relay.send_own(report_of(here, ++said), now, effects);
    return effects.empty() ? no_node : std::get<Send>(effects.front()).to;
  }
  static bool is_acknowledged(const Effects& effects, NodeId to) {
    return std::any_of(effects.begin(), effects.end(), [&](const Effect& effect) {
      const auto& send = std::get<Send>(effect);
      return send.to == to && send.message == Message(DirectiveBatch{});
    });
  }

  Relay relay = make();
  std::uint64_t said = 0;
};

TEST_F(RelayBatches, PassOnReportsOfAShortTimeUnchanged) {
  relay.follow(leader_node, here);
  EXPECT_TRUE(is_acknowledged(give(2, report_of(2, 5, 3), 100), 2));
  EXPECT_TRUE(is_acknowledged(give(3, report_of(3, 9), 110), 3));
  ASSERT_EQ(relay.reconcile_wanted_at(), 125);
  EXPECT_TRUE(reconcile(124).empty());
  const Effects effects = reconcile(125);
  ASSERT_EQ(effects.size(), 1u);
  const auto& send = std::get<Send>(effects.front());
  EXPECT_EQ(send.to, leader_node);
  EXPECT_EQ(send.message, Message(ReportBatch{{report_of(2, 5, 3), report_of(3, 9)}}));
  EXPECT_EQ(relay.reconcile_wanted_at(), std::nullopt);
}

TEST_F(RelayBatches, PassOnTheNewestReportOfEachNode) {
  relay.follow(leader_node, here);
  give(2, report_of(2, 5, 1), 100);
  give(2, report_of(2, 7, 2), 101);
  give(2, report_of(2, 6, 1), 102);  // overtaken
  EXPECT_EQ(std::get<Send>(reconcile(125).front()).message, Message(ReportBatch{{report_of(2, 7, 2)}}));
}

TEST_F(RelayBatches, HoldTheRelaysOwnReport) {
  relay.follow(leader_node, here);
  EXPECT_EQ(say(100), no_node);
  EXPECT_EQ(std::get<Send>(reconcile(125).front()).message, Message(ReportBatch{{report_of(here, 1)}}));
}

TEST_F(RelayBatches, AreBounded) {
  relay.follow(leader_node, here);
  give(2, report_of(2, 1, batch_max / 2), 100);
  const Effects effects = give(3, report_of(3, 1, batch_max / 2), 100);
  EXPECT_EQ(std::get<ReportBatch>(std::get<Send>(effects.back()).message).reports.size(), 2u);
}

TEST_F(RelayBatches, UnnamedRelayAcceptsNoReports) {
  relay.follow(leader_node, no_node);
  EXPECT_TRUE(give(2, report_of(2, 1), 100).empty());
  relay.follow(leader_node, 3);
  EXPECT_TRUE(give(2, report_of(2, 2), 100).empty());
  EXPECT_EQ(relay.reconcile_wanted_at(), std::nullopt);
}

TEST_F(RelayBatches, UnacknowledgedRelayAcceptsNoReports) {
  relay.follow(leader_node, here);
  give(2, report_of(2, 1), 100);
  reconcile(125);
  EXPECT_TRUE(is_acknowledged(give(2, report_of(2, 2), 400), 2));
  reconcile(425);
  EXPECT_TRUE(give(2, report_of(2, 3), 625).empty());
  acknowledge(2);  // that is not the leader
  EXPECT_TRUE(give(2, report_of(2, 4), 626).empty());
  acknowledge(leader_node);
  EXPECT_TRUE(is_acknowledged(give(2, report_of(2, 5), 627), 2));
}

// Its own reports show when the way is open again.
TEST_F(RelayBatches, IsolatedRelayKeepsReporting) {
  relay.follow(leader_node, here);
  say(100);
  reconcile(125);
  EXPECT_TRUE(give(2, report_of(2, 1), 2000).empty());
  EXPECT_EQ(say(2000), no_node);
  EXPECT_EQ(reconcile(2025).size(), 1u);
  acknowledge(leader_node);
  EXPECT_TRUE(is_acknowledged(give(2, report_of(2, 2), 2030), 2));
}

TEST_F(RelayBatches, MemberReportsToItsRelayWhileItAcknowledges) {
  relay.follow(leader_node, 3);
  for (TimeMs now = 0; now < 5000; now += 250) {
    EXPECT_EQ(say(now), 3u) << now;
    acknowledge(3);
  }
}

TEST_F(RelayBatches, MemberOfASilentRelayReportsToTheLeaderForAWhile) {
  relay.follow(leader_node, 3);
  EXPECT_EQ(say(0), 3u);
  EXPECT_EQ(say(250), 3u);
  acknowledge(leader_node);  // that is not the relay
  for (TimeMs now = 500; now < 10'500; now += 250) EXPECT_EQ(say(now), leader_node) << now;
  EXPECT_EQ(say(10'500), 3u);
  EXPECT_EQ(say(10'750), 3u);
  EXPECT_EQ(say(11'000), leader_node);
}

TEST_F(RelayBatches, MemberUsesANewRelayImmediately) {
  relay.follow(leader_node, 3);
  say(0);
  EXPECT_EQ(say(500), leader_node);
  relay.follow(leader_node, 4);
  EXPECT_EQ(say(510), 4u);
  relay.follow(leader_node, no_node);
  EXPECT_EQ(say(520), leader_node);
}

TEST_F(RelayBatches, NewLeaderHasTimeToAnswer) {
  relay.follow(leader_node, here);
  say(0);
  reconcile(25);
  relay.follow(5, here);
  EXPECT_TRUE(is_acknowledged(give(2, report_of(2, 1), 1000), 2));
}

TEST_F(RelayBatches, ForwardDirectivesForOtherNodes) {
  Directive directive;
  directive.epoch = 7;
  Effects effects;
  relay.on(leader_node, DirectiveBatch{{{here, directive}, {2, directive}, {3, directive}}}, effects);
  ASSERT_EQ(effects.size(), 2u);
  for (const NodeId node : {2u, 3u}) {
    const auto& send = std::get<Send>(effects[node - 2]);
    EXPECT_EQ(send.to, node);
    EXPECT_EQ(send.message, Message(DirectiveBatch{{{node, directive}}}));
  }
}

// ---- A job with relays ----

// Thirteen nodes in four groups: with node 0 as root the relays are 1, 2, 3 and 4, and node 2 has 6 and 10.
struct RelayedJob : testing::Test {
  static constexpr Rank ranks = 13;

  RelayedJob() {
    cluster.configure = [](Config& config) { config.relay_from = 4; };
    for (NodeId node = 0; node < ranks; ++node) cluster.boot(node);
    cluster.advance(1500);
    cluster.start_incarnation(own_node);
    cluster.advance(500);
    cluster.begin_training();
    cluster.advance(500);
    cluster.arrives = [this](NodeId from, const Send& send) { return note(from, send); };
  }

  bool note(NodeId from, const Send& send) {
    if (std::holds_alternative<Report>(send.message)) ++reports[{from, send.to}];
    if (std::holds_alternative<ReportBatch>(send.message)) ++batches[{from, send.to}];
    return true;
  }
  bool is_present(NodeId node) const {
    const auto present = cluster.status(0).nodes_present;
    return std::find(present.begin(), present.end(), node) != present.end();
  }
  // In the eyes of the leader, all the time.
  void stays_present(const std::set<NodeId>& nodes, TimeMs for_ms) {
    for (TimeMs ms = 0; ms < for_ms; ms += 50) {
      cluster.advance(50);
      for (const NodeId node : nodes) ASSERT_TRUE(is_present(node)) << node << " after " << ms << " ms";
    }
  }
  void commits(TimeMs within_ms = 1000) {
    ++iteration;
    cluster.snapshot_all(iteration);
    cluster.advance(within_ms);
    for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(cluster.commits[rank].iteration(), iteration) << rank;
  }

  Cluster cluster{0, ranks};
  std::int64_t iteration = 0;
  std::map<std::pair<NodeId, NodeId>, int> reports, batches;
};

TEST_F(RelayedJob, OnlyRelaysReportToTheLeader) {
  ASSERT_EQ(cluster.current_leader(), 0u);
  for (int i = 0; i < 3; ++i) commits();
  for (const auto& [way, count] : reports) EXPECT_NE(way.second, 0u) << "by node " << way.first;
  for (const auto& [way, count] : batches) EXPECT_EQ(way.second, 0u);
  EXPECT_EQ(batches.size(), 4u);
  for (const NodeId relay : {1u, 2u, 3u, 4u}) EXPECT_TRUE((batches.contains({relay, 0}))) << relay;
}

TEST_F(RelayedJob, RestoresTheCommit) {
  commits();
  cluster.lose(6);
  cluster.boot(6);
  cluster.ready.clear();
  cluster.start_incarnation(own_node);
  cluster.advance(3000);
  ASSERT_EQ(cluster.ready.size(), ranks);
  for (const auto& [rank, ready] : cluster.ready) EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 1)) << rank;
}

TEST_F(RelayedJob, OnlyTheRelayIsMissedIfItDiesDuringACommit) {
  for (Rank rank = 0; rank < 5; ++rank) cluster.snapshot(rank, 1);
  cluster.lose(2);
  for (Rank rank = 5; rank < ranks; ++rank) cluster.snapshot(rank, 1);
  stays_present({0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 5000);
  EXPECT_FALSE(is_present(2));
  for (const MemberChanged& change : cluster.changes) EXPECT_EQ(change.node, 2u);
  // The next one of the group has its place, and it goes on when the lost node is back.
  reports.clear();
  cluster.advance(1000);
  EXPECT_TRUE((reports.contains({10, 6})));
  cluster.boot(2);
  cluster.ready.clear();
  cluster.start_incarnation(own_node);
  cluster.advance(6000);
  ASSERT_EQ(cluster.ready.size(), ranks);
  cluster.begin_training();
  cluster.advance(500);
  iteration = 10;
  commits();
}

TEST_F(RelayedJob, DeadMemberIsMissedAsSoonAsWithoutARelay) {
  const Config config;
  cluster.lose(6);
  stays_present({0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12}, config.node_timeout_ms + 3 * config.report_ms);
  EXPECT_FALSE(is_present(6));
  ASSERT_EQ(cluster.changes.size(), 1u);
  EXPECT_EQ(cluster.changes[0].node, 6u);
}

TEST_F(RelayedJob, LeaderHearsAMemberCutOffFromItsRelay) {
  for (const auto& cut : {std::pair<NodeId, NodeId>{6, 2}, {2, 6}}) {
    cluster.cut = {cut};
    stays_present({2, 6, 10}, 13'000);  // in which it tries the relay again
    EXPECT_TRUE((reports.contains({6, 0})));
    commits();
    cluster.cut.clear();
    cluster.advance(11'000);
    reports.clear();
    cluster.advance(1000);
    EXPECT_FALSE((reports.contains({6, 0})));
  }
}

TEST_F(RelayedJob, LeaderHearsMembersOfARelayThatIsCutOff) {
  for (const auto& cut : {std::pair<NodeId, NodeId>{0, 2}, {2, 0}}) {
    cluster.cut = {cut};
    stays_present({6, 10}, 13'000);
    cluster.cut.clear();
    stays_present({6, 10}, 12'000);
    commits();
  }
  for (const MemberChanged& change : cluster.changes) EXPECT_EQ(change.node, 2u);
}

// Node 6 has taken over; the leader names node 2 again, and node 6 does not hear of it.
TEST_F(RelayedJob, ToleratesTwoRelaysOfOneGroup) {
  cluster.stop(2);
  cluster.advance(5000);
  cluster.resume(2);
  cluster.cut = {{0, 6}};
  cluster.advance(1000);
  batches.clear();
  cluster.advance(1000);
  EXPECT_TRUE((batches.contains({2, 0}) && batches.contains({6, 0})));
  stays_present({2, 6, 10}, 3000);
  cluster.cut.clear();
  cluster.advance(1000);
  commits();
}

TEST_F(RelayedJob, ToleratesLostRepeatedAndReorderedBatches) {
  int count = 0;
  std::map<std::pair<NodeId, NodeId>, Message> held;
  cluster.arrives = [&](NodeId from, const Send& send) {
    const bool is_batch =
        std::holds_alternative<ReportBatch>(send.message) || std::holds_alternative<DirectiveBatch>(send.message);
    if (!is_batch || from == send.to) return true;
    if (const auto late = held.extract({from, send.to}); !late.empty()) {
      cluster.feed(send.to, MessageArrived{from, send.message});
      cluster.feed(send.to, MessageArrived{from, late.mapped()});
      return false;
    }
    switch (++count % 5) {
      case 0:
        return false;
      case 1:
        cluster.feed(send.to, MessageArrived{from, send.message});
        return true;
      case 2:
        held.emplace(std::pair(from, send.to), send.message);
        return false;
      default:
        return true;
    }
  };
  for (int i = 0; i < 20; ++i) commits(4000);
  EXPECT_GT(count, 1000);
  EXPECT_TRUE(cluster.changes.empty());
}

TEST_F(RelayedJob, LateBatchDoesNotReplaceNewerReports) {
  std::optional<ReportBatch> early;
  std::uint32_t fewest = UINT32_MAX;
  cluster.arrives = [&](NodeId from, const Send& send) {
    const auto* report_batch = std::get_if<ReportBatch>(&send.message);
    if (report_batch != nullptr && from == 2 && !early) early = *report_batch;
    if (const auto* directive_batch = std::get_if<DirectiveBatch>(&send.message)) {
      for (const DirectiveBatch::Item& item : directive_batch->items)
        fewest = std::min(fewest, item.directive.copies_now);
    }
    return true;
  };
  cluster.advance(500);
  commits();
  ASSERT_TRUE(early);
  fewest = UINT32_MAX;
  cluster.feed(0, MessageArrived{2, *early});
  cluster.advance(1000);
  EXPECT_EQ(fewest, 2u);
}

TEST_F(RelayedJob, NewLeaderHearsAllNodesAndNamesItsOwnRelays) {
  commits();
  cluster.change_leader();
  const NodeId leader = *cluster.current_leader();
  ASSERT_NE(leader, 0u);
  cluster.advance(2000);
  EXPECT_EQ(cluster.status(leader).nodes_present.size(), ranks);
  reports.clear();
  batches.clear();
  cluster.advance(2000);
  EXPECT_GE(batches.size(), 2u);  // one group may be the leader alone
  for (const auto& [way, count] : reports) EXPECT_NE(way.second, leader) << "by node " << way.first;
  commits();
}

TEST_F(RelayedJob, IgnoresRelayedDirectivesOfAnOlderEpoch) {
  commits();
  Directive old;
  old.epoch = cluster.status(6).epoch - 1;
  old.sequence = 1'000'000;
  old.incarnation = 99;
  cluster.feed(6, MessageArrived{2, DirectiveBatch{{{6, old}}}});
  EXPECT_EQ(cluster.status(6).incarnation, 1u);
}

TEST_F(RelayedJob, FewNodesNeedNoRelay) {
  Cluster few(3, 3);
  int batches_sent = 0;
  few.arrives = [&](NodeId, const Send& send) {
    batches_sent +=
        std::holds_alternative<ReportBatch>(send.message) || std::holds_alternative<DirectiveBatch>(send.message);
    return true;
  };
  few.advance(500);
  few.start_incarnation(own_node);
  few.advance(500);
  few.begin_training();
  few.snapshot_all(1);
  EXPECT_EQ(few.commits.at(0), CheckpointId(1, 1));
  EXPECT_EQ(batches_sent, 0);
}

}  // namespace
}  // namespace ckpt::core
