// What the agents see of their ranks reaches the leader, and its suspicion reaches every node.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core::watched_ranks {
namespace {

constexpr std::uint32_t ranks = 4;

// Four ranks on as many nodes.
struct Job : Cluster {
  Job() : Cluster(ranks, ranks) {
    start_incarnation(own_node);
    begin_training();
    snapshot_all(40);
    advance(100);
  }
  void see(Rank rank, RankTrouble trouble, std::uint32_t begun) {
    feed(rank, RanksWatched{{{rank, 1, trouble, 'S', 40, begun, 3000, 0, 9}}, {}});
  }
  // What every node but `except` says, if all say the same.
  Suspicion everywhere(NodeId except = no_node) {
    std::optional<Suspicion> told;
    for (NodeId node = 0; node < ranks; ++node) {
      if (node == except) continue;
      const Suspicion here = status(node).suspicion;
      EXPECT_TRUE(!told || told->says_the_same(here)) << node;
      told = here;
    }
    return *told;
  }
};

TEST(WatchedRanks, EveryNodeNamesARankThatHasNotJoinedUntilItDoes) {
  Job job;
  for (const Rank rank : {0u, 1u, 2u}) job.see(rank, RankTrouble::waiting, 7);
  job.advance(1000);
  EXPECT_TRUE(job.everywhere().culprits.empty()) << "rank 3 may still come";
  job.see(3, RankTrouble::computing, 6);
  job.advance(1000);
  const Suspicion suspicion = job.everywhere();
  ASSERT_EQ(suspicion.culprits.size(), 1u);
  EXPECT_EQ(suspicion.culprits[0].node, 3u);
  EXPECT_EQ(suspicion.culprits[0].standing.rank, 3u);
  EXPECT_EQ(suspicion.communication, 7u);
  for (NodeId node = 0; node < ranks; ++node) job.feed(node, RanksWatched{});
  job.advance(100);
  EXPECT_TRUE(job.everywhere().culprits.empty());
}

TEST(WatchedRanks, TimesAdvanceBetweenReports) {
  Job job;
  job.see(2, RankTrouble::dead, 6);
  job.advance(5000);
  EXPECT_GE(job.everywhere().culprits.at(0).standing.still_ms, 7900);
}

TEST(WatchedRanks, ReportsADeathImmediatelyAndOtherTroubleAfterAWhile) {
  Job job;
  job.see(2, RankTrouble::stopped, 6);
  job.advance(200);
  EXPECT_TRUE(job.everywhere().culprits.empty());
  job.advance(400);
  EXPECT_EQ(job.everywhere().culprits.size(), 1u);
  job.see(1, RankTrouble::dead, 6);
  job.feed(2, RanksWatched{});
  job.advance(50);
  EXPECT_EQ(job.everywhere().culprits.at(0).standing.rank, 1u);
}

TEST(WatchedRanks, SuspectsNoRankOfAnEarlierIncarnation) {
  Job job;
  job.see(2, RankTrouble::dead, 6);
  job.advance(1000);
  ASSERT_EQ(job.everywhere().culprits.size(), 1u);
  job.start_incarnation(own_node);
  job.begin_training();
  job.advance(1000);
  EXPECT_TRUE(job.everywhere().culprits.empty());
}

TEST(WatchedRanks, NewLeaderNamesTheSameRank) {
  Job job;
  const NodeId leader = *job.current_leader();
  const Rank culprit = leader == 3 ? 2 : 3;
  job.see(culprit, RankTrouble::stopped, 6);
  job.advance(1000);
  job.lose(leader);
  job.advance(10'000);
  EXPECT_NE(*job.current_leader(), leader);
  const Suspicion suspicion = job.everywhere(leader);
  ASSERT_EQ(suspicion.culprits.size(), 2u);
  EXPECT_EQ(suspicion.culprits[0].standing.trouble, RankTrouble::unreachable) << "the node of the old leader";
  EXPECT_EQ(suspicion.culprits[1].standing.rank, culprit);
}

TEST(WatchedRanks, NewLeaderNamesARankThatDiedBeforeItsElection) {
  Job job;
  const NodeId leader = *job.current_leader();
  const Rank culprit = leader == 3 ? 2 : 3;
  job.exit_trainer(culprit);
  job.see(culprit, RankTrouble::dead, 6);
  job.advance(1000);
  ASSERT_EQ(job.everywhere().culprits.at(0).standing.rank, culprit);
  job.lose(leader);
  job.advance(10'000);
  ASSERT_NE(*job.current_leader(), leader);
  const Suspicion suspicion = job.everywhere(leader);
  ASSERT_FALSE(suspicion.culprits.empty());
  EXPECT_EQ(suspicion.culprits.back().standing.rank, culprit);
  EXPECT_EQ(suspicion.culprits.back().standing.trouble, RankTrouble::dead);
}

TEST(WatchedRanks, NewLeaderNamesANodeLostWithTheOldLeader) {
  Job job;
  const NodeId leader = *job.current_leader();
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank != leader) job.see(rank, RankTrouble::waiting, 7);
  }
  job.lose(leader);
  job.advance(15'000);
  const Suspicion suspicion = job.everywhere(leader);
  ASSERT_EQ(suspicion.culprits.size(), 1u);
  EXPECT_EQ(suspicion.culprits[0].standing.rank, leader);
  EXPECT_EQ(suspicion.culprits[0].standing.trouble, RankTrouble::unreachable);
}

TEST(WatchedRanks, SuspicionDoesNotOutliveThePausedLeader) {
  Job job;
  job.see(2, RankTrouble::stopped, 6);
  job.advance(50);
  job.pause(900);
  job.advance(50);
  EXPECT_TRUE(job.everywhere().culprits.empty());
  job.advance(600);
  EXPECT_EQ(job.everywhere().culprits.size(), 1u);
}

TEST(WatchedRanks, NamesASilentNodeWhileRanksWait) {
  Job job;
  const NodeId away = *job.current_leader() == 3 ? 2 : 3;
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank != away) job.see(rank, RankTrouble::waiting, 7);
  }
  job.advance(1000);
  job.lose(away);
  job.advance(10'000);
  const Suspicion suspicion = job.everywhere(away);
  ASSERT_EQ(suspicion.culprits.size(), 1u);
  EXPECT_EQ(suspicion.culprits[0].standing.rank, away);
  EXPECT_EQ(suspicion.culprits[0].standing.trouble, RankTrouble::unreachable);
}

TEST(WatchedRanks, NamesAStragglerIfNoRankHangs) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.feed(rank, RanksWatched{{}, {{rank, rank == 1 ? 1000 : 200}}});
  job.advance(1000);
  const Suspicion suspicion = job.everywhere();
  ASSERT_EQ(suspicion.culprits.size(), 1u);
  EXPECT_EQ(suspicion.culprits[0].standing.rank, 1u);
  EXPECT_EQ(suspicion.culprits[0].standing.trouble, RankTrouble::slow);
}

}  // namespace
}  // namespace ckpt::core::watched_ranks
