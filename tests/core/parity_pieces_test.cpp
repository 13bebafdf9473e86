#include "core/parity_pieces.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "cluster.hpp"
#include "core/job_placement.hpp"
#include "placement/parity_groups.hpp"

namespace ckpt::core::parity_pieces_test {
namespace {

using placement::Protection;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const CheckpointId checkpoint{1, 7};

// A group whose pieces of one checkpoint lie on the nodes of their members' numbers.
struct Group {
  ParityManifest parity_manifest;
  std::vector<PieceInfo> shards;  // by member
  std::vector<PieceInfo> parity;

  Pieces pieces(unsigned lost_shards = 0, unsigned lost_parity = 0) const {
    Pieces there;
    for (NodeId member = 0; member < shards.size(); ++member) {
      if (!shards[member].shard.empty() && !(lost_shards >> member & 1))
        there[shards[member].shard].push_back({member, &shards[member]});
      if (!(lost_parity >> member & 1)) there[parity[member].shard].push_back({member, &parity[member]});
    }
    return there;
  }
};

std::vector<std::string> names(const ParityManifest& parity_manifest) {
  std::vector<std::string> list;
  for (const auto& each : parity_manifest.sources) list.push_back(each.shard);
  return list;
}

Group group_of(const std::vector<std::uint64_t>& lengths, std::uint32_t rows) {
  Group group;
  group.parity_manifest.rows = rows;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::string name = "rank" + std::to_string(i);
    group.shards.push_back({name, checkpoint, lengths[i], 9, 1000 + i, 4});
    group.parity_manifest.sources.push_back({name, lengths[i], 9, 1000 + i});
  }
  for (std::uint32_t member = 0; member < lengths.size(); ++member) {
    PieceInfo piece{parity_name(rows, names(group.parity_manifest), member),
                    checkpoint,
                    0,
                    77,
                    2000 + member,
                    4,
                    group.parity_manifest};
    piece.parity_manifest.member = member;
    piece.length_bytes = layout_of(piece.parity_manifest).parity_bytes_of(member);
    group.parity.push_back(piece);
  }
  return group;
}

ParityOf parity_of(const Group& group, std::uint32_t member) {
  return {group.parity_manifest.rows, member, names(group.parity_manifest)};
}

std::vector<std::uint64_t> even(std::uint32_t members) {
  return std::vector<std::uint64_t>(members, 60 * placement::parity_unit_bytes);
}

TEST(ParityName, DistinguishesExactlyTheGroups) {
  const std::vector<std::string> shards{"a", "b", "c"};
  EXPECT_EQ(parity_name(1, shards, 2), parity_name(1, shards, 2));
  EXPECT_EQ(parse_part(parity_name(1, shards, 2)), (ShardPart{parse_part(parity_name(1, shards, 0)).shard, 2, 3}));
  EXPECT_TRUE(parity_name(1, shards, 2).starts_with(parity_prefix));
  std::set<std::string> different{parity_name(1, shards, 0),          parity_name(2, shards, 0),
                                  parity_name(1, {"b", "a", "c"}, 0), parity_name(1, {"a", "bc", ""}, 0),
                                  parity_name(1, {"ab", "", "c"}, 0), parity_name(1, {"a", "b", "c", ""}, 0)};
  EXPECT_EQ(different.size(), 6u);
  EXPECT_LE(parity_name(4, std::vector<std::string>(64, "x"), 63).size(), 64u) << "names end at 64 characters";
}

TEST(ParityName, IsTheSameInEveryBuild) {
  EXPECT_EQ(parity_name(1, {"rank0", "rank1"}, 1), "parity.8e003cf7a160b53f.1of2");
}

TEST(Decodable, CoversEveryLossUpToTheParityRows) {
  for (std::uint32_t members = 2; members <= 7; ++members) {
    for (std::uint32_t rows = 1; rows <= 3 && rows < members; ++rows) {
      const Group group = group_of(even(members), rows);
      for (unsigned lost = 1; lost < 1u << members; ++lost) {
        const auto found = decodable(group.pieces(lost, lost));
        const auto count = static_cast<std::uint32_t>(std::popcount(lost));
        if (count > rows) {
          // Where a member's segments do not all share a stripe with every other's, some of its bytes are left; never
          // all of them.
          EXPECT_TRUE(found.empty()) << members << " " << rows << " " << lost;
          continue;
        }
        ASSERT_EQ(found.size(), count) << members << " " << rows << " " << lost;
        for (const auto& [shard, coded_piece] : found) {
          const auto member = group_piece(group.parity_manifest, shard)->member;
          EXPECT_EQ(coded_piece.piece, group.shards[member]);
          EXPECT_TRUE(lost >> member & 1);
        }
      }
    }
  }
}

TEST(Decodable, NamesHoldersOfAllOtherPieces) {
  const Group group = group_of(even(4), 1);
  const auto found = decodable(group.pieces(1u << 2));
  ASSERT_EQ(found.size(), 1u);
  const CodingInputs& coding_inputs = found.at("rank2").coding_inputs;
  EXPECT_EQ(coding_inputs.parity_manifest.sources, group.parity_manifest.sources);
  EXPECT_EQ(coding_inputs.sources.size(), 7u);
  for (const auto& source : coding_inputs.sources)
    EXPECT_EQ(group_piece(group.parity_manifest, source.shard)->member, source.node);
}

TEST(Decodable, RejectsShardsThatDifferFromTheParitysSources) {
  Group group = group_of(even(4), 1);
  group.shards[1].root_digest ^= 1;
  EXPECT_TRUE(decodable(group.pieces(1u << 2)).empty());
}

TEST(Decodable, CountsBytesBeyondAShardsEndAsKnown) {
  // One leaf each: two of them meet at no offset of a stripe.
  const Group group = group_of(std::vector<std::uint64_t>(4, 1000), 1);
  EXPECT_EQ(decodable(group.pieces(0b11)).size(), 2u);
}

TEST(MakeParity, NeedsEveryShardFirstAndLaterAsManyAsDecoding) {
  const Group group = group_of({100, 200'000, 0, 70'000}, 1);
  const auto none = group.pieces(0, 0b1111);
  const auto first = plan_encoding(parity_of(group, 2), checkpoint, 4, none);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->piece.parity_manifest, group.parity[2].parity_manifest);
  EXPECT_EQ(first->piece.length_bytes, group.parity[2].length_bytes);
  EXPECT_EQ(first->piece.root_digest, 0u) << "nobody knows what it will be";
  EXPECT_FALSE(plan_encoding(parity_of(group, 2), checkpoint, 4, group.pieces(0b0010, 0b1111)));

  const Group full = group_of(even(4), 2);
  EXPECT_TRUE(plan_encoding(parity_of(full, 0), checkpoint, 4, full.pieces(0b0010, 0b0001)));
  EXPECT_FALSE(plan_encoding(parity_of(full, 0), checkpoint, 4, full.pieces(0b0110, 0b0001)));
}

TEST(MakeParity, RefusesImpossibleLengths) {
  Group group = group_of(even(3), 1);
  group.shards[1].length_bytes = UINT64_MAX;
  EXPECT_FALSE(plan_encoding(parity_of(group, 0), checkpoint, 4, group.pieces(0, 0b111)));
}

TEST(IsParityOf, AcceptsOnlyParityOfItsPositionMadeFromTheCheckpointsPieces) {
  Group group = group_of(even(3), 1);
  EXPECT_TRUE(is_parity_of(parity_of(group, 1), group.parity[1], group.pieces()));
  EXPECT_FALSE(is_parity_of(parity_of(group, 0), group.parity[1], group.pieces()));
  EXPECT_FALSE(is_parity_of(parity_of(group, 1), group.parity[1], group.pieces(0b100)));
  PieceInfo bare = group.parity[1];
  bare.parity_manifest = {};
  EXPECT_FALSE(is_parity_of(parity_of(group, 1), bare, group.pieces()));
  group.shards[2].root_digest ^= 1;
  EXPECT_FALSE(is_parity_of(parity_of(group, 1), group.parity[1], group.pieces()));
}

TEST(LossesLeft, CountsMembersWithMissingPieces) {
  const Group group = group_of(even(5), 2);
  EXPECT_EQ(losses_left(parity_of(group, 0), group.pieces()), 2u);
  EXPECT_EQ(losses_left(parity_of(group, 0), group.pieces(0b1, 0b1)), 1u);
  EXPECT_EQ(losses_left(parity_of(group, 0), group.pieces(0b1, 0b10)), 0u);
  EXPECT_EQ(losses_left(parity_of(group, 0), group.pieces(0b11, 0b11)), 0u);
  EXPECT_EQ(losses_left(parity_of(group, 0), group.pieces(0, 0b11111)), 0u);
}

TEST(ParityGroups, AreFewEqualAndLargeEnough) {
  for (std::uint32_t nodes = 1; nodes <= 40; ++nodes) {
    for (std::uint32_t rows = 1; rows <= 3; ++rows) {
      for (std::uint32_t most = rows + 1; most <= 9; ++most) {
        const auto found = placement::parity_groups(nodes, most, rows, nullptr).groups;
        std::set<std::uint32_t> seen;
        std::size_t least = SIZE_MAX, largest = 0;
        for (const auto& group : found) {
          seen.insert(group.begin(), group.end());
          least = std::min(least, group.size());
          largest = std::max(largest, group.size());
        }
        EXPECT_EQ(seen.size(), nodes);
        EXPECT_LE(largest - least, 1u);
        if (nodes > rows) {
          EXPECT_GT(least, rows) << nodes << " " << most << " " << rows;
        }
        if (nodes % most == 0) {
          EXPECT_EQ(largest, most);
        }
        const bool could_be_smaller = nodes / (found.size() + 1) > rows;
        EXPECT_TRUE(largest <= most || !could_be_smaller) << nodes << " " << most << " " << rows;
      }
    }
  }
}

TEST(ParityGroups, SeparateNeighboursAndNodesOfOneDomain) {
  EXPECT_THAT(placement::parity_groups(8, 4, 1, nullptr).groups,
              ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  const auto racks = placement::Domains::flat({0, 1, 2, 3, 0, 1, 2, 3});  // nodes r and r + 4 share rack r
  const auto apart = placement::parity_groups(8, 4, 1, &racks);
  EXPECT_EQ(apart.unseparated, 0u);
  for (const auto& group : apart.groups) {
    std::set<std::uint32_t> used;
    for (const std::uint32_t node : group) used.insert(node % 4);
    EXPECT_EQ(used.size(), 4u);
  }
  EXPECT_EQ(placement::parity_groups(8, 8, 1, &racks).unseparated, 1u);
}

// ---- In the incarnation of a job ----

std::string own(Rank rank) { return main_shard(rank); }
std::string all_one(Rank) { return "model"; }

struct Case {
  std::string protection;
  std::string (*shard)(Rank);
};

class ParityJob : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr Rank ranks = 5;
  static NodeId node_of(Rank rank) { return rank; }

  const Protection protection = placement::protection_named(GetParam().protection);

  std::unique_ptr<Cluster> make() {
    auto cluster = std::make_unique<Cluster>(0, ranks);
    cluster->protection = protection;
    cluster->main_of = GetParam().shard;
    for (NodeId node = 0; node < ranks; ++node) cluster->boot(node);
    return cluster;
  }
  std::unique_ptr<Cluster> make_committed() {
    auto cluster = make();
    cluster->start_incarnation(node_of);
    cluster->begin_training();
    cluster->snapshot_all(1);
    EXPECT_EQ(cluster->commits.size(), ranks);
    return cluster;
  }
  void restart(Cluster& cluster, const std::set<NodeId>& lost) {
    for (const NodeId node : lost) cluster.lose(node);
    for (const NodeId node : lost) cluster.boot(node);
    cluster.ready.clear();
    cluster.failed.clear();
    cluster.commits.clear();
    cluster.advance(5000);
    cluster.start_incarnation(node_of);
    cluster.advance(9000);
  }
  // Every group has lost no more members than it may.
  bool is_tolerated(const std::set<NodeId>& lost) const {
    for (const auto& group : placement::parity_groups(ranks, protection.members, protection.rows, nullptr).groups) {
      std::size_t gone = 0;
      for (const NodeId node : group) gone += lost.contains(node);
      if (gone > std::min<std::size_t>(protection.rows, group.size() - 1)) return false;
    }
    return true;
  }
};

TEST_P(ParityJob, RestoresEveryToleratedLossAndNamesOthers) {
  for (unsigned set = 1; set < 1u << ranks; ++set) {
    std::set<NodeId> lost;
    for (NodeId node = 0; node < ranks; ++node) {
      if (set >> node & 1) lost.insert(node);
    }
    const auto cluster = make_committed();
    restart(*cluster, lost);
    if (is_tolerated(lost)) {
      ASSERT_EQ(cluster->ready.size(), ranks) << set;
      for (const auto& [rank, ready] : cluster->ready) {
        EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 1)) << set;
        EXPECT_FALSE(ready.decision.behind);
        if (protection.copies == 1) {
          EXPECT_EQ(ready.private_.tier, lost.contains(rank) ? Tier::decoded : Tier::local) << set;
        }
      }
    } else if (protection.copies > 1) {
      // Copies may have survived; if not, that is said.
      EXPECT_EQ(cluster->ready.size() + cluster->failed.size(), ranks) << set;
      EXPECT_TRUE(cluster->ready.empty() || cluster->ready.at(0).decision.checkpoint == CheckpointId(1, 1)) << set;
    } else {
      ASSERT_EQ(cluster->failed.size(), ranks) << set;
      EXPECT_EQ(cluster->failed.at(0).error, RestoreError::lost);
      EXPECT_THAT(cluster->failed.at(0).text, HasSubstr("beyond tolerance"));
    }
  }
}

TEST_P(ParityJob, DecodesOnlyLostPiecesAndEachOnce) {
  const auto cluster = make_committed();
  cluster->made.clear();
  restart(*cluster, {3});
  ASSERT_EQ(cluster->ready.size(), ranks);
  EXPECT_FALSE(cluster->made.empty()) << "the parity of node 3, whatever else";
  // Nodes that restore all parts of a group decode for themselves.
  const bool decodes_everywhere = protection.rows == 1 && protection.members == ranks && GetParam().shard == all_one;
  for (const auto& [shard, times] : cluster->made)
    EXPECT_EQ(times, decodes_everywhere && shard.starts_with(all_one(0)) ? static_cast<int>(ranks) : 1) << shard;
  const bool is_parity_alone = protection.copies == 1;
  EXPECT_EQ(cluster->made.contains(private_shard(3)), is_parity_alone);
  EXPECT_FALSE(cluster->made.contains(private_shard(2)));
}

TEST_P(ParityJob, SurvivesLossesInTurnAndIsImmediatelyProtectedAgain) {
  const auto cluster = make_committed();
  for (NodeId round = 0; round < 10; ++round) {
    const NodeId lost = round * 2 % ranks;
    restart(*cluster, {lost});
    ASSERT_EQ(cluster->ready.size(), ranks) << round;
    EXPECT_EQ(cluster->ready.at(0).decision.checkpoint.iteration(), 1 + round / 2) << round;
    const auto leader = cluster->current_leader();
    ASSERT_TRUE(leader);
    EXPECT_EQ(cluster->status(*leader).parity_now, protection.rows) << "before the next snapshot";
    if (round % 2 == 0) continue;  // twice from the same checkpoint
    cluster->begin_training();
    cluster->snapshot_all(2 + round / 2);
    ASSERT_EQ(cluster->commits.size(), ranks) << round;
  }
}

TEST_P(ParityJob, CommitsOnlyOnceAllParityIsThere) {
  const auto cluster = make();
  cluster->start_incarnation(node_of);
  cluster->begin_training();
  cluster->fetching = false;
  cluster->snapshot_all(1);
  cluster->advance(1000);
  EXPECT_THAT(cluster->commits, IsEmpty());
  ASSERT_FALSE(cluster->held_fetches.empty());
  cluster->release_fetches();
  cluster->advance(5000);
  EXPECT_EQ(cluster->commits.size(), ranks);
}

TEST_P(ParityJob, SurvivesRestartedAgentsAndAnotherLeader) {
  const auto cluster = make_committed();
  cluster->restart_agents();
  cluster->advance(3000);
  cluster->change_leader();
  restart(*cluster, {1});
  ASSERT_EQ(cluster->ready.size(), ranks);
  EXPECT_EQ(cluster->ready.at(1).decision.checkpoint, CheckpointId(1, 1));
}

TEST_P(ParityJob, WaitsForSlowDecoding) {
  const auto cluster = make_committed();
  cluster->fetching = false;
  restart(*cluster, {3});
  cluster->advance(20'000);
  EXPECT_THAT(cluster->failed, IsEmpty());
  EXPECT_EQ(cluster->ready.size(), ranks - (GetParam().shard == own ? 1 : ranks)) << "others wait for nothing of it";
  cluster->release_fetches();
  cluster->advance(2000);
  EXPECT_THAT(cluster->failed, IsEmpty());
  ASSERT_EQ(cluster->ready.size(), ranks);
}

TEST_P(ParityJob, DecodesADamagedShardAgain) {
  const auto cluster = make_committed();
  for (NodeId node = 0; node < ranks; ++node) {
    for (const PieceInfo& piece : cluster->status(node).pieces) {
      if (piece.is_parity() || cluster->find_slot(node, piece)->rank == held_rank) continue;
      cluster->rot(node, piece.shard, CheckpointId(1, 1));
      cluster->advance(2000);
      EXPECT_NE(cluster->find_slot(node, piece), nullptr) << piece.shard << " on node " << node;
    }
  }
  EXPECT_EQ(cluster->status(*cluster->current_leader()).parity_now, protection.rows);
  EXPECT_EQ(cluster->status(*cluster->current_leader()).copies_now, protection.copies);
}

TEST_P(ParityJob, EncodesDamagedParityAgain) {
  const auto cluster = make_committed();
  const auto status = cluster->status(2);
  std::string rotten;
  for (const PieceInfo& piece : status.pieces) {
    if (piece.is_parity()) rotten = piece.shard;
  }
  ASSERT_FALSE(rotten.empty());
  cluster->made.clear();
  cluster->rot(2, rotten, CheckpointId(1, 1));
  cluster->advance(2000);
  EXPECT_EQ(cluster->made[rotten], 1);
  EXPECT_EQ(cluster->status(*cluster->current_leader()).parity_now, protection.rows);
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string text = info.param.protection + (info.param.shard == all_one ? "_shared" : "_own");
  for (char& c : text) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return text;
}

INSTANTIATE_TEST_SUITE_P(Protections, ParityJob,
                         ::testing::Values(Case{"xor(5)", own}, Case{"xor(5)", all_one}, Case{"xor(3)", own},
                                           Case{"rs(5,2)", own}, Case{"rs(5,2)", all_one}, Case{"rs(5,3)", own},
                                           Case{"copies(2)+xor(5)", own}),
                         name_of);

// A protection is asked of a job that was protected otherwise: what is stored counts as it was stored, and then as it
// is asked for now.
TEST(ParityChange, RestoresPiecesStoredUnderAnotherProtection) {
  for (const auto& [before, after] : {std::pair(Protection::of_copies(2), Protection::of_parity(4, 1)),
                                      std::pair(Protection::of_parity(4, 1), Protection::of_copies(2)),
                                      std::pair(Protection::of_parity(4, 1), Protection::of_parity(2, 1)),
                                      std::pair(Protection::of_parity(4, 2), Protection{2, 4, 1})}) {
    Cluster cluster(0, 4);
    cluster.protection = before;
    for (NodeId node = 0; node < 4; ++node) cluster.boot(node);
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    cluster.snapshot_all(1);
    ASSERT_EQ(cluster.commits.size(), 4u);
    cluster.protection = after;
    cluster.restart_agents();
    cluster.lose(2);
    cluster.boot(2);
    cluster.ready.clear();
    cluster.advance(5000);
    cluster.start_incarnation(own_node);
    cluster.advance(9000);
    ASSERT_EQ(cluster.ready.size(), 4u) << name(before) << " " << name(after);
    EXPECT_EQ(cluster.ready.at(2).decision.checkpoint, CheckpointId(1, 1));
    EXPECT_EQ(cluster.status(*cluster.current_leader()).parity_now, after.rows) << name(before) << " " << name(after);
    EXPECT_EQ(cluster.status(*cluster.current_leader()).copies_now, after.copies) << name(before) << " " << name(after);
  }
}

// Ranks come back on other nodes: the groups are called after the shards, so all parity is found and none made.
TEST(ParityChange, MovedRanksKeepTheirParityGroups) {
  Cluster cluster(0, 4);
  cluster.protection = Protection::of_parity(4, 1);
  for (NodeId node = 0; node < 4; ++node) cluster.boot(node);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(1);
  cluster.made.clear();
  cluster.ready.clear();
  cluster.advance(5000);
  cluster.start_incarnation([](Rank rank) { return (rank + 1) % 4; });
  cluster.advance(9000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(2).decision.checkpoint, CheckpointId(1, 1));
  EXPECT_THAT(cluster.made, IsEmpty());
  EXPECT_EQ(cluster.status(*cluster.current_leader()).parity_now, 1u);
}

TEST(ParityChange, SingleNodeKeepsNoParity) {
  Cluster cluster(0, 2);
  cluster.protection = Protection::of_parity(4, 1);
  cluster.boot(0);
  cluster.start_incarnation([](Rank) { return NodeId{0}; });
  cluster.begin_training();
  cluster.snapshot_all(1);
  EXPECT_EQ(cluster.commits.size(), 2u);
  EXPECT_THAT(cluster.made, IsEmpty());
}

TEST(ParityChange, NodesOfSeveralRanksProtectEachOfThem) {
  Cluster cluster(0, 8);
  cluster.protection = Protection::of_parity(4, 1);
  for (NodeId node = 0; node < 4; ++node) cluster.boot(node);
  const auto two_each = [](Rank rank) { return rank / 2; };
  cluster.start_incarnation(two_each);
  cluster.begin_training();
  cluster.snapshot_all(1);
  ASSERT_EQ(cluster.commits.size(), 8u);
  cluster.lose(1);
  cluster.boot(1);
  cluster.ready.clear();
  cluster.advance(5000);
  cluster.start_incarnation(two_each);
  cluster.advance(9000);
  ASSERT_EQ(cluster.ready.size(), 8u);
  for (const Rank rank : {2u, 3u}) EXPECT_EQ(cluster.ready.at(rank).main.front().tier, Tier::decoded);
}

}  // namespace
}  // namespace ckpt::core::parity_pieces_test
