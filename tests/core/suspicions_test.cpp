#include "core/suspicions.hpp"

#include <gtest/gtest.h>

#include <set>

namespace ckpt::core::suspicions_test {
namespace {

constexpr std::uint32_t ranks = 4;

Culprit rank_in(Rank rank, RankTrouble trouble, std::uint32_t begun = 6, std::int64_t iteration = 40) {
  return {10 + rank, {rank, 1, trouble, 'S', iteration, begun, 3200, 0, 9}};
}

// A stage of a pipeline, which makes so many communications in an iteration.
Culprit stage(Culprit rank, std::optional<std::uint32_t> per_iteration) {
  rank.standing.per_iteration = per_iteration;
  return rank;
}

std::set<Rank> named(const Suspicion& suspicion) {
  std::set<Rank> found;
  for (const Culprit& each : suspicion.culprits) found.insert(each.standing.rank);
  return found;
}

std::string text_of(const Suspicion& suspicion) {
  return explain(suspicion, [](NodeId node) { return std::string(1, static_cast<char>('a' + node - 10)); });
}

// Every rank is one of these: on its way, waiting in communication 7, or not there yet in one of the ways of `absent`.
template <class Check>
void in_every_way(RankTrouble absent, Check check) {
  for (std::uint32_t way = 0; way < 81; ++way) {
    std::vector<Culprit> in_trouble;
    std::set<Rank> waiting, missing;
    for (std::uint32_t rank = 0, rest = way; rank < ranks; ++rank, rest /= 3) {
      if (rest % 3 == 1) in_trouble.push_back(rank_in(rank, RankTrouble::waiting, 7));
      if (rest % 3 == 1) waiting.insert(rank);
      if (rest % 3 == 2) in_trouble.push_back(rank_in(rank, absent, 6));
      if (rest % 3 == 2) missing.insert(rank);
    }
    check(find_culprits(in_trouble, ranks), waiting, missing);
  }
}

TEST(Suspicions, NamesEverySubsetOfStoppedDeadOrComputingRanks) {
  for (const RankTrouble absent : {RankTrouble::computing, RankTrouble::stopped, RankTrouble::dead}) {
    in_every_way(absent, [&](const Suspicion& found, const auto& waiting, const auto& missing) {
      if (missing.empty()) return;
      EXPECT_EQ(named(found), missing);
      EXPECT_EQ(found.waiting, waiting.size());
      EXPECT_EQ(found.is_everybody, absent == RankTrouble::computing && missing.size() == ranks);
      if (!waiting.empty()) {
        EXPECT_EQ(found.communication, 7u);
      }
    });
  }
}

TEST(Suspicions, NamesASilentNodeOnlyIfRanksWaitForIt) {
  in_every_way(RankTrouble::unreachable, [](const Suspicion& found, const auto& waiting, const auto& missing) {
    if (missing.empty()) return;
    EXPECT_EQ(named(found), waiting.empty() ? std::set<Rank>() : missing);
  });
}

TEST(Suspicions, NamesNoWaitingRanksWhileAnotherMayStillArrive) {
  in_every_way(RankTrouble::dead, [](const Suspicion& found, const auto& waiting, const auto& missing) {
    if (!missing.empty()) return;
    const bool is_everybody = waiting.size() == ranks;
    EXPECT_EQ(found.culprits.empty(), !is_everybody);
    EXPECT_EQ(found.is_everybody, is_everybody);
  });
}

TEST(Suspicions, DeathOrStopOutweighsPosition) {
  const Suspicion found = find_culprits(
      {rank_in(0, RankTrouble::computing, 1), rank_in(1, RankTrouble::stopped, 9), rank_in(2, RankTrouble::dead, 8)},
      4);
  EXPECT_EQ(named(found), (std::set<Rank>{1, 2}));
}

TEST(Suspicions, NamesComputingRanksThatAreLeastAdvanced) {
  EXPECT_EQ(named(find_culprits({rank_in(0, RankTrouble::computing, 5, 41), rank_in(1, RankTrouble::computing, 6, 40),
                                 rank_in(2, RankTrouble::computing, 6, 40), rank_in(3, RankTrouble::computing, 7, 40)},
                                4)),
            (std::set<Rank>{1, 2}));
}

TEST(Suspicions, NamesWaitingRanksInTheEarliestCommunication) {
  const Suspicion found = find_culprits({rank_in(0, RankTrouble::waiting, 7), rank_in(1, RankTrouble::waiting, 6)}, 2);
  EXPECT_EQ(named(found), std::set<Rank>{1});
  EXPECT_FALSE(found.is_everybody);
}

TEST(Suspicions, DoesNotComparePositionsOfDifferentCommunicationCounts) {
  for (const std::optional<std::uint32_t> other : {std::optional<std::uint32_t>(12), std::optional<std::uint32_t>()}) {
    const Suspicion stuck = find_culprits(
        {stage(rank_in(0, RankTrouble::waiting, 7), 9), stage(rank_in(1, RankTrouble::waiting, 10), other)}, 2);
    EXPECT_TRUE(stuck.is_everybody);
    EXPECT_EQ(text_of(stuck),
              "all 2 ranks have waited in communications of iteration 41 for 3.2 s: the network or the communication "
              "library hangs");
    EXPECT_EQ(named(find_culprits({stage(rank_in(0, RankTrouble::computing, 7), 9),
                                   stage(rank_in(1, RankTrouble::computing, 10), other)},
                                  3)),
              (std::set<Rank>{0, 1}));
    const Suspicion awaited = find_culprits(
        {stage(rank_in(0, RankTrouble::waiting, 7), 9), stage(rank_in(1, RankTrouble::computing, 10), other)}, 2);
    EXPECT_EQ(named(awaited), std::set<Rank>{1});
    EXPECT_EQ(awaited.waiting, 1u);
    EXPECT_EQ(text_of(awaited), "rank 1 on node b has made no progress in iteration 41 for 3.2 s: its process sleeps");
  }
}

TEST(Suspicions, ComparesIterationsOfDifferentCommunicationCounts) {
  EXPECT_EQ(named(find_culprits({stage(rank_in(0, RankTrouble::computing, 2, 41), 9),
                                 stage(rank_in(1, RankTrouble::computing, 10, 40), 12)},
                                2)),
            std::set<Rank>{1});
}

TEST(Suspicions, NamesAFewOfManyCulpritsAndCountsTheRest) {
  std::vector<Culprit> dead;
  for (Rank rank = 0; rank < 100; ++rank) dead.push_back(rank_in(rank, RankTrouble::dead));
  const Suspicion found = find_culprits(dead, 200);
  EXPECT_EQ(found.culprits.size(), culprits_max);
  EXPECT_EQ(found.count, 100u);
  EXPECT_TRUE(text_of(found).ends_with("; and 97 more ranks"));
}

TEST(Suspicions, MessageNamesTheRankTheCommunicationAndTheProcessState) {
  EXPECT_EQ(text_of(find_culprits({rank_in(0, RankTrouble::waiting, 7), rank_in(3, RankTrouble::stopped)}, 4)),
            "rank 3 on node d has not joined communication 7 of iteration 41 for 3.2 s: its process is stopped "
            "(SIGSTOP)");
  EXPECT_EQ(text_of(find_culprits({rank_in(1, RankTrouble::dead)}, 4)),
            "rank 1 on node b has made no progress in iteration 41 for 3.2 s: its process has ended");
  EXPECT_EQ(text_of(find_culprits({rank_in(0, RankTrouble::waiting, 7), rank_in(1, RankTrouble::waiting, 7)}, 2)),
            "all 2 ranks have waited in communication 7 of iteration 41 for 3.2 s: the network or the communication "
            "library hangs");
  EXPECT_EQ(text_of(find_culprits({rank_in(0, RankTrouble::computing), rank_in(1, RankTrouble::computing)}, 2)),
            "all 2 ranks have made no progress in iteration 41 for 3.2 s");
  EXPECT_EQ(text_of(find_culprits({rank_in(0, RankTrouble::waiting, 7)}, 1)),
            "rank 0 on node a has waited in communication 7 of iteration 41 for 3.2 s: its process sleeps");
  EXPECT_EQ(text_of(find_culprits({rank_in(0, RankTrouble::waiting, 7), rank_in(3, RankTrouble::stopped, 7)}, 4)),
            "rank 3 on node d has made no progress in iteration 41 for 3.2 s: its process is stopped (SIGSTOP)")
      << "it has joined what the other waits in";
  EXPECT_EQ(text_of({}), "");
}

TEST(Suspicions, PositionsChangeTheFindingButTimesDoNot) {
  Culprit later = rank_in(3, RankTrouble::stopped);
  const Suspicion before = find_culprits({later}, 4);
  later.standing.still_ms += 5000;
  EXPECT_TRUE(find_culprits({later}, 4).says_the_same(before));
  later.standing.begun = 7;
  EXPECT_FALSE(find_culprits({later}, 4).says_the_same(before));
}

TEST(Stragglers, NamesARankThatComputesMuchLonger) {
  const Suspicion found = find_stragglers({{10, 0, 200}, {11, 1, 210}, {12, 2, 190}, {13, 3, 1000}}, 4, 3);
  EXPECT_EQ(named(found), std::set<Rank>{3});
  EXPECT_EQ(text_of(found), "rank 3 on node d computes 1.0 s in an iteration, other ranks 0.2 s");
  EXPECT_EQ(named(find_stragglers({{10, 0, 100}, {11, 1, 500}}, 2, 3)), std::set<Rank>{1});
}

TEST(Stragglers, NamesNoRankForSmallDifferencesOrUnknownTimes) {
  EXPECT_TRUE(named(find_stragglers({{10, 0, 200}, {11, 1, 400}}, 2, 3)).empty());
  EXPECT_TRUE(named(find_stragglers({{10, 0, 1}, {11, 1, 40}}, 2, 3)).empty()) << "too short to matter";
  EXPECT_TRUE(named(find_stragglers({{10, 0, 200}, {11, 1, 0}}, 2, 3)).empty());
  EXPECT_TRUE(named(find_stragglers({{10, 0, 2000}, {11, 1, 200}}, 3, 3)).empty());
  EXPECT_TRUE(named(find_stragglers({{10, 0, 2000}}, 1, 3)).empty());
}

}  // namespace
}  // namespace ckpt::core::suspicions_test
