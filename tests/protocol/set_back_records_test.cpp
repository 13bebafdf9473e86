// A store that lost its records, or has older ones again, while who led by the newer ones is gone: nobody goes on as if
// these had never been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::protocol {
namespace {

constexpr Rank ranks = 3;

LifeRecord life_of(std::uint64_t incarnation, std::uint64_t epoch, Verdict verdict) {
  LifeRecord life;
  life.incarnation = incarnation;
  life.epoch = epoch;
  life.world_size = ranks;
  life.decision.verdict = verdict;
  return life;
}

std::vector<Seat> some_seats() {
  std::vector<Seat> seats;
  for (Rank rank = 0; rank < ranks; ++rank)
    seats.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
  return seats;
}

// Time passes for the node, which is not stopped.
void wait(LoneNode& node, TimeMs for_ms) {
  for (const TimeMs end = node.now + for_ms; node.now < end;) {
    node.now += 100;
    node.handle(Tick{});
  }
}

// ---- Who leads ----

TEST(ANewLeader, IsFollowedAtOnceWhereTheStoresRevisionsBeganAnew) {
  LoneNode node{Config{}};
  node.handle(RootRead{40, {5, lone_leader, 7}});
  node.handle(RootRead{1, {6, lone_leader + 1, 0}});
  EXPECT_EQ(node.status().root, lone_leader + 1);
}

TEST(ANewLeader, IsFollowedByTheFormerOneWhereTheStoresRevisionsBeganAnew) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  ASSERT_TRUE(leader.status().is_root);
  leader.handle(RootRead{0, {leader.status().epoch + 1, lone_leader + 1, 0}});
  EXPECT_FALSE(leader.status().is_root);
}

// The node has seen a later revision, and at that an earlier beat.
TEST(ALeaderThatPutsItsRecordBack, KeepsItsLease) {
  LoneNode node{Config{}};
  node.handle(RootRead{40, {5, lone_leader, 7}});
  node.handle(LifeRead{1, life_of(1, 5, Verdict::fresh)});
  for (std::uint64_t beat = 8; beat < 40; ++beat) {
    wait(node, 500);
    node.handle(RootRead{beat - 7, {5, lone_leader, beat}});
  }
  EXPECT_TRUE(node.all<SwapRoot>().empty());
}

TEST(ALeader, WritesTheRecordOfItsTermAgainBeforeItsLeaseEnds) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  ASSERT_TRUE(leader.status().is_root);
  const std::uint64_t epoch = leader.status().epoch;
  leader.handle(RootRead{0, {}});
  leader.effects.clear();
  wait(leader, Config().lease_ms / 2);
  const auto renewed = leader.all<SwapRoot>();
  ASSERT_FALSE(renewed.empty());
  EXPECT_EQ(renewed[0].expected_revision, 0u);
  EXPECT_EQ(renewed[0].record.epoch, epoch);
  EXPECT_TRUE(leader.status().is_root);
}

// With its seats, which may be gone as well. Of a later term it is another leader's.
TEST(ALeader, WritesTheLifeAgainThatItLeadsWhereTheStoreLostItOrHasAnOlderOne) {
  for (const LifeRecord& there : {LifeRecord(), life_of(1, 0, Verdict::fresh)}) {
    LoneLeader leader(ranks, placement::Protection::of_copies(2));
    const LifeRecord led = leader.life();
    ASSERT_EQ(led.epoch, leader.status().epoch);
    leader.effects.clear();
    leader.handle(LifeRead{0, there});
    const auto lives = leader.all<SwapLife>();
    ASSERT_EQ(lives.size(), 1u);
    EXPECT_EQ(lives[0].expected_revision, 0u);
    EXPECT_EQ(lives[0].record, led);
    EXPECT_EQ(name_of(1, lives[0].seats), led.seats);
    const auto notices = leader.all<Notice>();
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_THAT(notices[0].text, ::testing::HasSubstr("writes it again"));
  }
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  leader.effects.clear();
  leader.handle(LifeRead{9, life_of(2, leader.status().epoch + 1, Verdict::fresh)});
  EXPECT_TRUE(leader.all<SwapLife>().empty());
}

// ---- Which life it is ----

// The leader of term 2 goes on from a record that had been set back. Whoever knows the decision leads next.
TEST(ALifeThatWasDecided, IsNotTakenForUndecidedByWhoKnowsBetter) {
  LoneNode node{Config{}};
  LifeRecord decided = life_of(2, 1, Verdict::fresh);
  decided.seats = name_of(2, some_seats());
  node.handle(RootRead{40, {1, lone_leader, 0}});
  node.handle(LifeRead{7, decided});
  node.handle(RootRead{41, {2, lone_leader, 0}});
  node.handle(LifeRead{5, life_of(2, 2, Verdict::undecided)});
  wait(node, 6000);
  const auto lives = node.all<SwapLife>();
  ASSERT_FALSE(lives.empty());
  EXPECT_EQ(lives[0].expected_revision, 5u);
  EXPECT_EQ(lives[0].record.decision.verdict, Verdict::fresh);
  EXPECT_GT(lives[0].record.epoch, 2u);
}

// Without delay: its revision says nothing.
TEST(ALaterLife, IsBelievedAtOnceWhereTheStoresRevisionsBeganAnew) {
  LoneNode follower{Config{}};
  follower.handle(RootRead{40, {4, lone_leader, 0}});
  follower.handle(LifeRead{7, life_of(2, 4, Verdict::fresh)});
  follower.handle(LifeRead{1, life_of(3, 4, Verdict::undecided)});
  follower.handle(RootRead{41, {4, no_node, 0}});  // nobody leads any more
  follower.handle(Tick{});
  const auto lives = follower.all<SwapLife>();
  ASSERT_FALSE(lives.empty());
  EXPECT_EQ(lives[0].record.incarnation, 3u);
}

TEST(ALifeThatRanksServe, IsFollowedByAnotherWhereTheRecordIsOfAnOlderOne) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  Report report = leader.report_of(0);
  leader.say(report);
  EXPECT_EQ(leader.life().incarnation, 1u);
  report = leader.report_of(1);
  report.ranks[0].incarnation = 4;
  leader.say(report);
  EXPECT_EQ(leader.life().incarnation, 5u);
  const auto notices = leader.all<Notice>();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].text.find("lost the record of life 4"), std::string::npos) << notices[0].text;
  EXPECT_EQ(leader.life().world_size, ranks);
  leader.say(leader.report_of(1));
  const Directive told = leader.newest_to<Directive>(1);
  ASSERT_EQ(told.refused.size(), 1u);
  EXPECT_TRUE(told.refused[0].superseded);
}

// Of the ranks alone it is known then how many there are.
TEST(ALifeThatRanksServe, IsFollowedByAnotherWhereThereIsNoRecord) {
  LoneNode node{Config{}};
  node.lead({}, {});
  ASSERT_TRUE(node.status().is_root);
  Report report;
  report.node = 1;
  report.arena_id = 101;
  report.agent_id = report.sequence = 1;
  report.epoch = node.status().epoch;
  report.ranks.push_back({0, 50, 3, ranks, main_shard(0), private_shard(0)});
  node.hear(1, report);
  EXPECT_EQ(node.life().incarnation, 4u);
  EXPECT_EQ(node.life().world_size, ranks);
}

// It is the last number there is.
TEST(ALifeThatRanksServe, IsFollowedByNoneWhereNoNumberIsLeft) {
  Recovered recovered;
  recovered.newest_seen = Version(Version::incarnation_max, 1);  // else it would take such a record for damage
  LoneNode node{Config{}, recovered};
  const auto seats = some_seats();
  LifeRecord life = life_of(Version::incarnation_max, 0, Verdict::fresh);
  life.seats = name_of(Version::incarnation_max, seats);
  node.lead(life, seats);
  ASSERT_TRUE(node.status().is_root);
  Report report;
  report.node = 1;
  report.arena_id = 101;
  report.agent_id = report.sequence = 1;
  report.epoch = node.status().epoch;
  report.ranks.push_back({1, 50, 0, ranks, main_shard(1), private_shard(1)});  // it starts anew
  node.hear(1, report);
  EXPECT_EQ(node.life().incarnation, Version::incarnation_max);
  EXPECT_THAT(node.newest_to<Directive>(1).alarm, ::testing::HasSubstr("no life of the job can follow life 16777215"));
}

TEST(ALifeThatANodeWasTold, IsFollowedByAnotherOnlyOnceThereIsARank) {
  LoneNode node{Config{}};
  node.lead({}, {});
  ASSERT_TRUE(node.status().is_root);
  Report report;
  report.node = 1;
  report.arena_id = 101;
  report.agent_id = report.sequence = 1;
  report.epoch = node.status().epoch;
  report.told_life = 3;
  node.hear(1, report);
  EXPECT_EQ(node.life().incarnation, 0u);
  ++report.sequence;
  report.ranks.push_back({0, 50, 0, 1, main_shard(0), private_shard(0)});
  node.hear(1, report);
  EXPECT_EQ(node.life().incarnation, 4u);
  EXPECT_EQ(node.life().world_size, 1u);
}

// It was decided, and the store has its record from before that. Nobody may decide it for a second time.
TEST(ALifeThatANodeWasTold, IsNotDecidedTwice) {
  for (const std::uint64_t told : {0u, 1u, 2u, 3u}) {
    LoneNode node{Config{}};
    const auto seats = some_seats();
    LifeRecord life = life_of(2, 0, Verdict::undecided);
    life.seats = name_of(1, seats);
    node.lead(life, seats);
    ASSERT_TRUE(node.status().is_root);
    Report report;
    report.node = 1;
    report.arena_id = 101;
    report.agent_id = report.sequence = 1;
    report.epoch = node.status().epoch;
    report.told_life = told;
    node.hear(1, report);
    EXPECT_EQ(node.life().incarnation, told < 2 ? 2 : told + 1) << told;
  }
}

TEST(ALifeThatANodeWasTold, IsNamedInItsReportsOnceItWasDecided) {
  LoneNode node{Config{}};
  node.follow(lone_leader, 5);
  const auto tell = [&](std::uint64_t sequence, std::uint64_t incarnation, Verdict verdict) {
    Directive directive;
    directive.root = lone_leader;
    directive.epoch = 5;
    directive.sequence = sequence;
    directive.incarnation = incarnation;
    directive.decision.verdict = verdict;
    node.hear(lone_leader, directive);
    return node.newest_to<Report>(lone_leader).told_life;
  };
  EXPECT_EQ(tell(1, 6, Verdict::undecided), 0u);
  EXPECT_EQ(tell(2, 6, Verdict::fresh), 6u);
  EXPECT_EQ(tell(3, 7, Verdict::undecided), 6u);
  EXPECT_EQ(tell(4, 7, Verdict::lost), 7u);
  // By the store: what comes before a life that is not decided was.
  node.handle(LifeRead{1, life_of(8, 5, Verdict::undecided)});
  EXPECT_EQ(node.newest_to<Report>(lone_leader).told_life, 7u);
  node.handle(LifeRead{2, life_of(8, 5, Verdict::fresh)});
  EXPECT_EQ(node.newest_to<Report>(lone_leader).told_life, 8u);
  // A trainer that outlived the agent before this one has restored in that life.
  node.handle(TrainerHello{0, 50, 9, ranks, main_shard(0), private_shard(0)});
  EXPECT_EQ(node.newest_to<Report>(lone_leader).told_life, 9u);
}

// ---- Who sat where ----

TEST(SeatsThatAreGone, EndTheirLifeWhereNobodyComesToKnowThem) {
  for (const bool come_back : {false, true}) {
    LoneNode node{Config{}};
    const auto seats = some_seats();
    LifeRecord life = life_of(1, 0, Verdict::fresh);
    life.seats = name_of(1, seats);
    node.lead(life, {});
    ASSERT_TRUE(node.status().is_root);
    wait(node, 4500);
    EXPECT_EQ(node.life().incarnation, 1u) << "the records may be late";
    if (come_back) node.handle(SeatsRead{life.seats, seats});
    wait(node, 5500);
    EXPECT_EQ(node.life().incarnation, come_back ? 1u : 2u);
    EXPECT_EQ(node.life().world_size, ranks);
  }
}

// ---- What was committed ----

TEST(ACommit, IsOnRecordAgainAsSoonAsALeaderHearsOfIt) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  Report report = leader.report_of(2);
  report.highest_commit = Version(1, 8);
  leader.say(report);
  EXPECT_EQ(leader.life().first_commit, Version(1, 8)) << "whoever else has yet to be heard";
  report = leader.report_of(1);
  report.highest_commit = Version(1, 12);
  leader.say(report);
  EXPECT_EQ(leader.life().first_commit, Version(1, 8)) << "one of each life";
}

// The members that have it on record may be gone together with the store's record. Then whoever has read that tells.
TEST(ACommit, IsToldByWhoeverReadOfItWhereTheStoreLostItsRecord) {
  LoneNode node{Config{}};
  node.follow(lone_leader, 5);
  const auto told = [&] {
    node.now += 1000;
    node.handle(Tick{});
    return node.newest_to<Report>(lone_leader).highest_commit;
  };
  LifeRecord life = life_of(3, 5, Verdict::fresh);
  node.handle(LifeRead{1, life});
  EXPECT_EQ(told(), Version());
  life.first_commit = Version(3, 4);
  node.handle(LifeRead{2, life});
  EXPECT_EQ(told(), Version(3, 4));
  node.handle(LifeRead{});
  EXPECT_EQ(told(), Version(3, 4)) << "the record is lost";
}

}  // namespace
}  // namespace ckpt::protocol
