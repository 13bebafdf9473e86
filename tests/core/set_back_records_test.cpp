// A store that lost its records, or has older ones again, while who led by the newer ones is gone: nobody goes on as if
// these had never been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::core::set_back_records {
namespace {

constexpr Rank ranks = 3;

IncarnationRecord incarnation_of(std::uint64_t incarnation, std::uint64_t epoch, Verdict verdict) {
  IncarnationRecord incarnation_record;
  incarnation_record.incarnation = incarnation;
  incarnation_record.epoch = epoch;
  incarnation_record.world_size = ranks;
  incarnation_record.decision.verdict = verdict;
  return incarnation_record;
}

std::vector<RankAssignment> some_assignments() {
  std::vector<RankAssignment> assignments;
  for (Rank rank = 0; rank < ranks; ++rank)
    assignments.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
  return assignments;
}

// Time passes for the node, which is not stopped.
void wait(LoneNode& node, TimeMs for_ms) {
  for (const TimeMs end = node.now + for_ms; node.now < end;) {
    node.now += 100;
    node.handle(Tick{});
  }
}

// ---- Who leads ----

TEST(ANewLeader, IsFollowedImmediatelyAfterTheStoresRevisionsRestart) {
  LoneNode node{Config{}};
  node.handle(LeaderRecordRead{40, {5, lone_leader, 7}});
  node.handle(LeaderRecordRead{1, {6, lone_leader + 1, 0}});
  EXPECT_EQ(node.status().leader, lone_leader + 1);
}

TEST(ANewLeader, IsFollowedByTheFormerLeaderAfterTheStoresRevisionsRestart) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  ASSERT_TRUE(leader.status().is_leader);
  leader.handle(LeaderRecordRead{0, {leader.status().epoch + 1, lone_leader + 1, 0}});
  EXPECT_FALSE(leader.status().is_leader);
}

// The node has seen a later revision, and at that an earlier heartbeat.
TEST(ALeaderThatPutsItsRecordBack, KeepsItsLease) {
  LoneNode node{Config{}};
  node.handle(LeaderRecordRead{40, {5, lone_leader, 7}});
  node.handle(IncarnationRecordRead{1, incarnation_of(1, 5, Verdict::fresh)});
  for (std::uint64_t heartbeat = 8; heartbeat < 40; ++heartbeat) {
    wait(node, 500);
    node.handle(LeaderRecordRead{heartbeat - 7, {5, lone_leader, heartbeat}});
  }
  EXPECT_TRUE(node.all<SwapLeaderRecord>().empty());
}

TEST(ALeader, RewritesTheRecordOfItsTermBeforeItsLeaseEnds) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  ASSERT_TRUE(leader.status().is_leader);
  const std::uint64_t epoch = leader.status().epoch;
  leader.handle(LeaderRecordRead{0, {}});
  leader.effects.clear();
  wait(leader, Config().lease_ms / 2);
  const auto renewed = leader.all<SwapLeaderRecord>();
  ASSERT_FALSE(renewed.empty());
  EXPECT_EQ(renewed[0].expected_revision, 0u);
  EXPECT_EQ(renewed[0].record.epoch, epoch);
  EXPECT_TRUE(leader.status().is_leader);
}

// With its rank assignments, which may be gone as well. Of a later term it is another leader's.
TEST(ALeader, RewritesItsIncarnationIfTheStoreLostOrRevertedIt) {
  for (const IncarnationRecord& there : {IncarnationRecord(), incarnation_of(1, 0, Verdict::fresh)}) {
    LoneLeader leader(ranks, placement::Protection::of_copies(2));
    const IncarnationRecord led = leader.incarnation_record();
    ASSERT_EQ(led.epoch, leader.status().epoch);
    leader.effects.clear();
    leader.handle(IncarnationRecordRead{0, there});
    const auto incarnations = leader.all<SwapIncarnationRecord>();
    ASSERT_EQ(incarnations.size(), 1u);
    EXPECT_EQ(incarnations[0].expected_revision, 0u);
    EXPECT_EQ(incarnations[0].record, led);
    EXPECT_EQ(name_of(1, incarnations[0].assignments), led.assignments);
    const auto notices = leader.all<Notice>();
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_THAT(notices[0].text, ::testing::HasSubstr("writes it again"));
  }
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  leader.effects.clear();
  leader.handle(IncarnationRecordRead{9, incarnation_of(2, leader.status().epoch + 1, Verdict::fresh)});
  EXPECT_TRUE(leader.all<SwapIncarnationRecord>().empty());
}

// ---- Which incarnation it is ----

// The leader of term 2 goes on from a record that had been set back. Whoever knows the decision leads next.
TEST(AnIncarnationThatWasDecided, StaysDecidedForNodesThatKnowTheDecision) {
  LoneNode node{Config{}};
  IncarnationRecord decided = incarnation_of(2, 1, Verdict::fresh);
  decided.assignments = name_of(2, some_assignments());
  node.handle(LeaderRecordRead{40, {1, lone_leader, 0}});
  node.handle(IncarnationRecordRead{7, decided});
  node.handle(LeaderRecordRead{41, {2, lone_leader, 0}});
  node.handle(IncarnationRecordRead{5, incarnation_of(2, 2, Verdict::undecided)});
  wait(node, 6000);
  const auto incarnations = node.all<SwapIncarnationRecord>();
  ASSERT_FALSE(incarnations.empty());
  EXPECT_EQ(incarnations[0].expected_revision, 5u);
  EXPECT_EQ(incarnations[0].record.decision.verdict, Verdict::fresh);
  EXPECT_GT(incarnations[0].record.epoch, 2u);
}

// Without delay: its revision says nothing.
TEST(ALaterIncarnation, IsAcceptedImmediatelyAfterTheStoresRevisionsRestart) {
  LoneNode follower{Config{}};
  follower.handle(LeaderRecordRead{40, {4, lone_leader, 0}});
  follower.handle(IncarnationRecordRead{7, incarnation_of(2, 4, Verdict::fresh)});
  follower.handle(IncarnationRecordRead{1, incarnation_of(3, 4, Verdict::undecided)});
  follower.handle(LeaderRecordRead{41, {4, no_node, 0}});  // nobody leads any more
  follower.handle(Tick{});
  const auto incarnations = follower.all<SwapIncarnationRecord>();
  ASSERT_FALSE(incarnations.empty());
  EXPECT_EQ(incarnations[0].record.incarnation, 3u);
}

TEST(AnIncarnationThatRanksServe, IsFollowedByANewOneIfTheRecordIsOlder) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  Report report = leader.report_of(0);
  leader.say(report);
  EXPECT_EQ(leader.incarnation_record().incarnation, 1u);
  report = leader.report_of(1);
  report.ranks[0].incarnation = 4;
  leader.say(report);
  EXPECT_EQ(leader.incarnation_record().incarnation, 5u);
  const auto notices = leader.all<Notice>();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].text.find("lost the record of incarnation 4"), std::string::npos) << notices[0].text;
  EXPECT_EQ(leader.incarnation_record().world_size, ranks);
  leader.say(leader.report_of(1));
  const Directive directive = leader.newest_to<Directive>(1);
  ASSERT_EQ(directive.refused.size(), 1u);
  EXPECT_TRUE(directive.refused[0].superseded);
}

// Of the ranks alone it is known then how many there are.
TEST(AnIncarnationThatRanksServe, IsFollowedByANewOneWithoutARecord) {
  LoneNode node{Config{}};
  node.lead({}, {});
  ASSERT_TRUE(node.status().is_leader);
  Report report;
  report.node = 1;
  report.arena_id = 101;
  report.agent_id = report.sequence = 1;
  report.epoch = node.status().epoch;
  report.ranks.push_back({0, 50, 3, ranks, main_shard(0), private_shard(0)});
  node.receive(1, report);
  EXPECT_EQ(node.incarnation_record().incarnation, 4u);
  EXPECT_EQ(node.incarnation_record().world_size, ranks);
}

// It is the last number there is.
TEST(AnIncarnationThatRanksServe, IsNotFollowedIfNoNumberIsLeft) {
  Recovered recovered;
  recovered.newest_seen =
      CheckpointId(CheckpointId::incarnation_max, 1);  // else it would take such a record for damage
  LoneNode node{Config{}, recovered};
  const auto assignments = some_assignments();
  IncarnationRecord incarnation_record = incarnation_of(CheckpointId::incarnation_max, 0, Verdict::fresh);
  incarnation_record.assignments = name_of(CheckpointId::incarnation_max, assignments);
  node.lead(incarnation_record, assignments);
  ASSERT_TRUE(node.status().is_leader);
  Report report;
  report.node = 1;
  report.arena_id = 101;
  report.agent_id = report.sequence = 1;
  report.epoch = node.status().epoch;
  report.ranks.push_back({1, 50, 0, ranks, main_shard(1), private_shard(1)});  // it starts anew
  node.receive(1, report);
  EXPECT_EQ(node.incarnation_record().incarnation, CheckpointId::incarnation_max);
  EXPECT_THAT(node.newest_to<Directive>(1).alarm, ::testing::HasSubstr("cannot begin another incarnation: 16777215"));
}

TEST(AnIncarnationThatANodeWasTold, IsFollowedByANewOneOnlyOnceThereIsARank) {
  LoneNode node{Config{}};
  node.lead({}, {});
  ASSERT_TRUE(node.status().is_leader);
  Report report;
  report.node = 1;
  report.arena_id = 101;
  report.agent_id = report.sequence = 1;
  report.epoch = node.status().epoch;
  report.newest_known_incarnation = 3;
  node.receive(1, report);
  EXPECT_EQ(node.incarnation_record().incarnation, 0u);
  ++report.sequence;
  report.ranks.push_back({0, 50, 0, 1, main_shard(0), private_shard(0)});
  node.receive(1, report);
  EXPECT_EQ(node.incarnation_record().incarnation, 4u);
  EXPECT_EQ(node.incarnation_record().world_size, 1u);
}

// It was decided, and the store has its record from before that. Nobody may decide it for a second time. The decision
// removed the assignments of the incarnation before. Those who know of it may not be there for as long as a leader
// waits for assignments.
TEST(AnIncarnationThatANodeWasTold, IsNotDecidedTwice) {
  for (const auto& [known, are_removed] :
       {std::pair{0u, false}, {1u, false}, {2u, false}, {3u, false}, {2u, true}, {3u, true}}) {
    LoneNode node{Config{}};
    const auto assignments = some_assignments();
    IncarnationRecord incarnation_record = incarnation_of(2, 0, Verdict::undecided);
    incarnation_record.assignments = name_of(1, assignments);
    node.lead(incarnation_record, are_removed ? std::vector<RankAssignment>() : assignments);
    ASSERT_TRUE(node.status().is_leader);
    Report report;
    report.node = 1;
    report.arena_id = 101;
    report.agent_id = report.sequence = 1;
    report.epoch = node.status().epoch;
    report.newest_known_incarnation = known;
    node.receive(1, report);
    EXPECT_EQ(node.incarnation_record().incarnation, known < 2 ? 2 : known + 1) << known << are_removed;
  }
}

TEST(AnIncarnationThatANodeWasTold, IsReportedByTheNodeOnceDecided) {
  LoneNode node{Config{}};
  node.follow(lone_leader, 5);
  const auto notify = [&](std::uint64_t sequence, std::uint64_t incarnation, Verdict verdict) {
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = sequence;
    directive.incarnation = incarnation;
    directive.decision.verdict = verdict;
    node.receive(lone_leader, directive);
    return node.newest_to<Report>(lone_leader).newest_known_incarnation;
  };
  EXPECT_EQ(notify(1, 6, Verdict::undecided), 0u);
  EXPECT_EQ(notify(2, 6, Verdict::fresh), 6u);
  EXPECT_EQ(notify(3, 7, Verdict::undecided), 6u);
  EXPECT_EQ(notify(4, 7, Verdict::lost), 7u);
  // By the store: what comes before an incarnation that is not decided was.
  node.handle(IncarnationRecordRead{1, incarnation_of(8, 5, Verdict::undecided)});
  EXPECT_EQ(node.newest_to<Report>(lone_leader).newest_known_incarnation, 7u);
  node.handle(IncarnationRecordRead{2, incarnation_of(8, 5, Verdict::fresh)});
  EXPECT_EQ(node.newest_to<Report>(lone_leader).newest_known_incarnation, 8u);
  // A trainer that outlived the agent before this one has restored in that incarnation.
  node.handle(TrainerHello{0, 50, 9, ranks, main_shard(0), private_shard(0)});
  EXPECT_EQ(node.newest_to<Report>(lone_leader).newest_known_incarnation, 9u);
}

// ---- Who sat where ----

TEST(AssignmentsThatAreGone, EndTheirIncarnationIfNoNodeKnowsThem) {
  for (const bool come_back : {false, true}) {
    LoneNode node{Config{}};
    const auto assignments = some_assignments();
    IncarnationRecord incarnation_record = incarnation_of(1, 0, Verdict::fresh);
    incarnation_record.assignments = name_of(1, assignments);
    node.lead(incarnation_record, {});
    ASSERT_TRUE(node.status().is_leader);
    wait(node, 4500);
    EXPECT_EQ(node.incarnation_record().incarnation, 1u) << "the records may be late";
    if (come_back) node.handle(AssignmentsRead{incarnation_record.assignments, assignments});
    wait(node, 5500);
    EXPECT_EQ(node.incarnation_record().incarnation, come_back ? 1u : 2u);
    EXPECT_EQ(node.incarnation_record().world_size, ranks);
  }
}

// ---- What was committed ----

TEST(ACommit, IsRecordedAgainOnceALeaderHearsOfIt) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  Report report = leader.report_of(2);
  report.highest_commit = CheckpointId(1, 8);
  leader.say(report);
  EXPECT_EQ(leader.incarnation_record().first_commit, CheckpointId(1, 8)) << "whoever else has yet to be heard";
  report = leader.report_of(1);
  report.highest_commit = CheckpointId(1, 12);
  leader.say(report);
  EXPECT_EQ(leader.incarnation_record().first_commit, CheckpointId(1, 8)) << "one of each incarnation";
}

// The members that have it on record may be lost together with the store's record. Then any node that has read it
// reports it.
TEST(ACommit, IsReportedByNodesThatReadItAfterTheStoreLostIt) {
  LoneNode node{Config{}};
  node.follow(lone_leader, 5);
  const auto highest_commit = [&] {
    node.now += 1000;
    node.handle(Tick{});
    return node.newest_to<Report>(lone_leader).highest_commit;
  };
  IncarnationRecord incarnation_record = incarnation_of(3, 5, Verdict::fresh);
  node.handle(IncarnationRecordRead{1, incarnation_record});
  EXPECT_EQ(highest_commit(), CheckpointId());
  incarnation_record.first_commit = CheckpointId(3, 4);
  node.handle(IncarnationRecordRead{2, incarnation_record});
  EXPECT_EQ(highest_commit(), CheckpointId(3, 4));
  node.handle(IncarnationRecordRead{});
  EXPECT_EQ(highest_commit(), CheckpointId(3, 4)) << "the record is lost";
}

}  // namespace
}  // namespace ckpt::core::set_back_records
