#include "core/job_placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

using placement::Strategy;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

std::string own(Rank rank) { return main_shard(rank); }
std::string all_one(Rank) { return "model"; }

// Rank r sits on node r / ranks_per_node.
std::vector<RankAssignment> assignments(Rank ranks, std::string (*shard)(Rank), Rank ranks_per_node = 1) {
  std::vector<RankAssignment> list;
  for (Rank rank = 0; rank < ranks; ++rank)
    list.push_back({rank, rank / ranks_per_node, 0, "", shard(rank), private_shard(rank)});
  return list;
}

// Whether every part is left when these nodes are lost.
bool survives(const JobPlacement& placement_of_job, const std::set<NodeId>& lost) {
  return std::all_of(placement_of_job.places.begin(), placement_of_job.places.end(), [&](const auto& entry) {
    return std::any_of(entry.second.holders.begin(), entry.second.holders.end(),
                       [&](NodeId node) { return !lost.contains(node); });
  });
}

JobPlacement arranged(const std::vector<RankAssignment>& assignments, std::optional<Strategy> strategy,
                      std::uint32_t copies) {
  return arrange(assignments, strategy, placement::Protection::of_copies(copies));
}

TEST(PartName, ParsesOnlyValidPartNames) {
  EXPECT_EQ(part_name("model", 0, 1), "model");
  EXPECT_EQ(part_name("model", 2, 4), "model.2of4");
  EXPECT_EQ(parse_part("model.2of4"), (ShardPart{"model", 2, 4}));
  EXPECT_EQ(parse_part("a.b.0of2"), (ShardPart{"a.b", 0, 2}));
  for (const char* name : {"model", "model.4of4", "model.0of1", "model.of2", "model.1of", "model.01of2", "model.-1of2",
                           ".0of2", "0of2", "model.0of99999", "rank0.private"}) {
    EXPECT_EQ(parse_part(name), (ShardPart{name, 0, 1})) << name;
  }
}

TEST(JobPlacement, EveryStrategyPutsCopiesOnDifferentNodes) {
  for (const auto strategy : {std::optional<Strategy>(), std::optional(Strategy::group), std::optional(Strategy::ring),
                              std::optional(Strategy::mixed), std::optional(Strategy::cover)}) {
    for (const Rank ranks : {4u, 5u, 7u}) {
      for (const std::uint32_t copies : {1u, 2u, 3u}) {
        const JobPlacement placement_of_job = arranged(assignments(ranks, own), strategy, copies);
        ASSERT_EQ(placement_of_job.places.size(), 2 * ranks);
        for (const auto& [part, place] : placement_of_job.places) {
          EXPECT_THAT(place.holders, SizeIs(copies)) << part;
          EXPECT_EQ(std::set<NodeId>(place.holders.begin(), place.holders.end()).size(), copies) << part;
          EXPECT_EQ(place.holders.front(), place.capturers.front()) << part;
        }
      }
    }
  }
}

// With more than one step for each of them and part this would not end in time.
TEST(JobPlacement, ThousandsOfRanksMayShareAShard) {
  constexpr Rank ranks = 4000;
  const auto all = assignments(ranks, all_one);
  const JobPlacement placement_of_job = arranged(all, {}, 2);
  EXPECT_THAT(placement_of_job.places.at(part_name("model", 7, ranks)).owners, SizeIs(ranks));
  EXPECT_EQ(places_with({{"model", ranks}}, ranks, all, placement_of_job), std::nullopt);
}

TEST(JobPlacement, DividesASharedShardAmongItsRanksAndSendsNothing) {
  const JobPlacement placement_of_job = arranged(assignments(4, all_one), {}, 2);
  EXPECT_EQ(placement_of_job.places.size(), 4u + 4u);
  for (const auto& [part, place] : placement_of_job.places) {
    if (parse_part(part).of == 1) continue;
    EXPECT_EQ(place.holders, place.capturers) << part;
    EXPECT_THAT(place.holders, SizeIs(2)) << part;
    EXPECT_THAT(place.owners, ElementsAre(0, 1, 2, 3)) << part;
  }
  for (const auto& [rank, share] : placement_of_job.shares) {
    EXPECT_EQ(share.of, 4u);
    EXPECT_EQ(share.stored, 2u) << "half of it each instead of all of it";
  }
}

TEST(JobPlacement, SharedShardSurvivesTheLossOfAnyNode) {
  for (const Rank ranks_per_node : {1u, 2u}) {
    const JobPlacement placement_of_job = arranged(assignments(8, all_one, ranks_per_node), {}, 2);
    for (NodeId node = 0; node < 8 / ranks_per_node; ++node) EXPECT_TRUE(survives(placement_of_job, {node})) << node;
  }
}

TEST(JobPlacement, ShardedKeepsOneCopyOfEachPart) {
  const JobPlacement placement_of_job = arranged(assignments(4, all_one), Strategy::sharded, 2);
  for (const auto& [part, place] : placement_of_job.places) {
    const bool is_part = parse_part(part).of > 1;
    EXPECT_THAT(place.holders, SizeIs(is_part ? 1 : 2)) << part;
  }
  EXPECT_FALSE(survives(placement_of_job, {2}));
}

TEST(JobPlacement, TwoRanksThatShareAShardBothKeepAllOfIt) {
  const JobPlacement placement_of_job = arranged(assignments(2, all_one), {}, 2);
  EXPECT_THAT(placement_of_job.places.at("model").holders, UnorderedElementsAre(0, 1));
  EXPECT_EQ(placement_of_job.shares.at(0), Share{});
}

TEST(JobPlacement, PutsCopiesBeyondTheSharersOnOtherNodes) {
  auto all = assignments(4, own);
  all[0].main_shard = all[1].main_shard = "pair";
  const JobPlacement placement_of_job = arranged(all, {}, 3);
  EXPECT_THAT(placement_of_job.places.at("pair").capturers, ElementsAre(0, 1));
  EXPECT_THAT(placement_of_job.places.at("pair").holders, SizeIs(3));
}

TEST(JobPlacement, PutsCopiesInDifferentDomainsIfPossible) {
  for (const auto shard : {own, all_one}) {
    auto all = assignments(8, shard);
    for (RankAssignment& assignment : all) assignment.domain = "row0/rack" + std::to_string(assignment.node / 4);
    const JobPlacement placement_of_job = arranged(all, {}, 2);
    EXPECT_TRUE(survives(placement_of_job, {0, 1, 2, 3})) << "a whole rack";
    EXPECT_TRUE(survives(placement_of_job, {4, 5, 6, 7}));
    EXPECT_EQ(placement_of_job.notice, "");
  }
}

TEST(JobPlacement, SaysWhenDomainsCannotSeparateCopies) {
  auto all = assignments(4, own);
  for (RankAssignment& assignment : all) assignment.domain = assignment.node < 3 ? "rack0" : "rack1";
  EXPECT_THAT(arranged(all, {}, 2).notice, ::testing::HasSubstr("failure domains"));
}

TEST(JobPlacement, ReplacingANodeMovesNothingElse) {
  auto before = assignments(9, own), after = before;
  after[4].node = 77;
  const JobPlacement old_places = arranged(before, {}, 3), new_places = arranged(after, {}, 3);
  for (const auto& [part, place] : old_places.places) {
    auto expected = place.holders;
    std::replace(expected.begin(), expected.end(), NodeId{4}, NodeId{77});
    EXPECT_EQ(new_places.places.at(part).holders, expected) << part;
  }
}

// ---- In the incarnation of a job: what the arrangement promises is what a restart finds ----

struct Case {
  std::optional<Strategy> strategy;
  std::string (*shard)(Rank);
};

class Restart : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr Rank ranks = 5;
  static NodeId node_of(Rank rank) { return rank; }

  void start(Cluster& cluster) {
    cluster.main_of = GetParam().shard;
    cluster.start_incarnation(node_of);
    cluster.begin_training();
    cluster.snapshot_all(1);
    ASSERT_EQ(cluster.commits.size(), ranks);
  }
  std::unique_ptr<Cluster> make(std::uint32_t copies) {
    auto cluster = std::make_unique<Cluster>(0, ranks, copies);
    cluster->strategy = GetParam().strategy;
    for (NodeId node = 0; node < ranks; ++node) cluster->boot(node);
    return cluster;
  }
};

TEST_P(Restart, SurvivesEverySetOfLossesThatThePlacementAllows) {
  constexpr std::uint32_t copies = 2;
  const JobPlacement promised = arranged(assignments(ranks, GetParam().shard), GetParam().strategy, copies);
  for (unsigned set = 1; set < 1u << ranks; ++set) {
    std::set<NodeId> lost;
    for (NodeId node = 0; node < ranks; ++node) {
      if (set >> node & 1) lost.insert(node);
    }
    const auto cluster = make(copies);
    start(*cluster);
    for (const NodeId node : lost) cluster->lose(node);
    for (const NodeId node : lost) cluster->boot(node + 10);
    cluster->ready.clear();
    cluster->failed.clear();
    cluster->advance(5000);
    cluster->start_incarnation([&](Rank rank) { return lost.contains(rank) ? rank + 10 : rank; });
    cluster->advance(9000);
    if (survives(promised, lost)) {
      ASSERT_EQ(cluster->ready.size(), ranks) << set;
      for (const auto& [rank, ready] : cluster->ready) EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 1)) << set;
    } else {
      ASSERT_EQ(cluster->failed.size(), ranks) << set;
      EXPECT_EQ(cluster->failed.at(0).error, RestoreError::lost);
    }
  }
}

TEST_P(Restart, CommitsAgainAfterALossAndSurvivesTheNextOne) {
  const auto cluster = make(2);
  start(*cluster);
  const bool tolerant = GetParam().strategy != Strategy::sharded || GetParam().shard == own;
  if (!tolerant) return;
  for (std::int64_t round = 0; round < 4; ++round) {
    const NodeId lost = static_cast<NodeId>(round % ranks);
    cluster->lose(lost);
    cluster->boot(lost);
    cluster->ready.clear();
    cluster->commits.clear();
    cluster->advance(5000);
    cluster->start_incarnation(node_of);
    cluster->advance(9000);
    ASSERT_EQ(cluster->ready.size(), ranks) << round;
    EXPECT_EQ(cluster->ready.at(0).decision.checkpoint.iteration(), 1 + round);
    cluster->begin_training();
    cluster->snapshot_all(2 + round);
    ASSERT_EQ(cluster->commits.size(), ranks) << round;
    EXPECT_EQ(cluster->commits.at(0).iteration(), 2 + round);
  }
}

// The strategy is another one in the next incarnation: what is stored is found as it was cut.
TEST_P(Restart, RestoresPiecesPlacedByAnotherStrategy) {
  for (const auto next :
       {std::optional<Strategy>(), std::optional(Strategy::group), std::optional(Strategy::sharded)}) {
    const auto cluster = make(2);
    start(*cluster);
    cluster->strategy = next;
    cluster->restart_agents();
    cluster->ready.clear();
    cluster->commits.clear();
    cluster->advance(5000);
    cluster->start_incarnation(node_of);
    cluster->advance(9000);
    ASSERT_EQ(cluster->ready.size(), ranks);
    EXPECT_EQ(cluster->ready.at(3).decision.checkpoint, CheckpointId(1, 1));
    cluster->begin_training();
    cluster->snapshot_all(2);
    ASSERT_EQ(cluster->commits.size(), ranks);
    EXPECT_EQ(cluster->commits.at(0), CheckpointId(2, 2));
  }
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [strategy, shard] = info.param;
  std::string text(strategy ? placement::name(*strategy) : "automatic");
  std::replace(text.begin(), text.end(), '+', '_');
  return text + (shard == all_one ? "_shared" : "_own");
}

INSTANTIATE_TEST_SUITE_P(Strategies, Restart,
                         ::testing::Values(Case{{}, own}, Case{{}, all_one}, Case{Strategy::group, own},
                                           Case{Strategy::group, all_one}, Case{Strategy::ring, own},
                                           Case{Strategy::mixed, own}, Case{Strategy::cover, own},
                                           Case{Strategy::sharded, own}, Case{Strategy::sharded, all_one},
                                           Case{Strategy::sharded_copy, all_one}),
                         name_of);

}  // namespace
}  // namespace ckpt::core
