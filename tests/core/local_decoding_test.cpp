// Which nodes decode lost pieces of the checkpoint to restore from their own memory, and which parity they fetch for
// it.
#include "core/leader/local_decoding.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cluster.hpp"
#include "core/leader/leader.hpp"
#include "core/lists.hpp"

namespace ckpt::core::local_decoding_test {
namespace {

using ::testing::ElementsAre;

const CheckpointId restored{1, 5};
constexpr NodeId lost_node = 3;

std::string part(std::uint32_t index) { return part_name("model", index, 4); }

// Four nodes with a rank each. All ranks have the same shard, which is cut into a part for each node. The parts are a
// parity group. Node 3 has lost its memory.
class SharedShard {
 public:
  explicit SharedShard(std::uint32_t rows = 1) {
    parity_manifest_.rows = rows;
    std::vector<std::string> names;
    for (std::uint32_t index = 0; index < 4; ++index) {
      parts_.push_back(piece_of(part(index), restored, 4));
      names.push_back(part(index));
      parity_manifest_.sources.push_back({part(index), parts_.back().length_bytes, 100, parts_.back().root_digest});
    }
    for (std::uint32_t member = 0; member < 4; ++member) {
      PieceInfo piece = piece_of(parity_name(rows, names, member), restored, 4);
      piece.parity_manifest = parity_manifest_;
      piece.parity_manifest.member = member;
      piece.length_bytes = layout_of(piece.parity_manifest).parity_bytes_of(member);
      parity_.push_back(piece);
    }
  }
  const PieceInfo& data(std::uint32_t index) const { return parts_.at(index); }
  const PieceInfo& parity(std::uint32_t member) const { return parity_.at(member); }
  std::vector<PieceInfo> on(NodeId node) const {
    return node == lost_node ? std::vector<PieceInfo>() : std::vector{data(node), parity(node)};
  }
  Pieces pieces() const {
    Pieces there;
    for (NodeId node = 0; node < 4; ++node) {
      if (node == lost_node) continue;
      there[data(node).shard].push_back({node, &data(node)});
      there[parity(node).shard].push_back({node, &parity(node)});
    }
    return there;
  }
  // Where each part belongs. All nodes restore all parts.
  Places places() const {
    Places places;
    for (NodeId node = 0; node < 4; ++node) places[part(node)] = {{0, 1, 2, 3}, {node}, {node}};
    return places;
  }

 private:
  ParityManifest parity_manifest_;
  std::vector<PieceInfo> parts_, parity_;
};

class LocalDecodingTest : public ::testing::Test {
 protected:
  LocalDecoding plan(const SharedShard& shard, const Places& places, std::set<NodeId> absent = {}) {
    pieces_ = shard.pieces();
    lost_ = decodable(pieces_);
    return plan_local_decoding(lost_, pieces_, places, [&](NodeId node) { return !absent.contains(node); });
  }

  Pieces pieces_;
  std::map<std::string, CodedPiece> lost_;
};

TEST_F(LocalDecodingTest, EveryNodeThatRestoresAllShardsOfTheGroupDecodes) {
  const SharedShard shard;
  const LocalDecoding decoding = plan(shard, shard.places());
  ASSERT_EQ(decoding.decoders.size(), 1u);
  EXPECT_THAT(decoding.decoders.at(part(3)), ElementsAre(0, 1, 2, 3));
}

TEST_F(LocalDecodingTest, EachNodeFetchesTheParityThatItLacks) {
  const SharedShard shard;
  const LocalDecoding decoding = plan(shard, shard.places());
  ASSERT_EQ(decoding.readers.size(), 3u);
  EXPECT_THAT(decoding.readers.at(shard.parity(0).shard), ElementsAre(1, 2, 3));
  EXPECT_THAT(decoding.readers.at(shard.parity(1).shard), ElementsAre(0, 2, 3));
  EXPECT_THAT(decoding.readers.at(shard.parity(2).shard), ElementsAre(0, 1, 3));
}

TEST_F(LocalDecodingTest, ExcludesNodesThatDoNotAnswer) {
  const SharedShard shard;
  const LocalDecoding decoding = plan(shard, shard.places(), {1});
  EXPECT_THAT(decoding.decoders.at(part(3)), ElementsAre(0, 2, 3));
  EXPECT_THAT(decoding.readers.at(shard.parity(2).shard), ElementsAre(0, 3));
}

TEST_F(LocalDecodingTest, NodeWithoutAllInputsDecodesNothing) {
  const SharedShard shard;
  Places places = shard.places();
  places.at(part(1)).owners = {0, 1};
  const LocalDecoding decoding = plan(shard, places);
  EXPECT_THAT(decoding.decoders.at(part(3)), ElementsAre(0, 1));
  EXPECT_THAT(decoding.readers.at(shard.parity(0).shard), ElementsAre(1));
}

TEST_F(LocalDecodingTest, NodeThatNeedsNoLostPieceDecodesNothing) {
  const SharedShard shard;
  Places places = shard.places();
  places.at(part(3)).owners = {2, 3};
  EXPECT_THAT(plan(shard, places).decoders.at(part(3)), ElementsAre(2, 3));
}

// With two rows, decoding reads the halves of two parity pieces, each as long as the lost part. To fetch both would be
// twice as many bytes as to fetch the part.
TEST_F(LocalDecodingTest, NoNodeFetchesMuchMoreParityThanItDecodes) {
  const SharedShard shard(2);
  const LocalDecoding decoding = plan(shard, shard.places());
  ASSERT_EQ(decoding.readers.size(), 2u);
  for (const NodeId node : decoding.decoders.at(part(3))) {
    const auto fetches = [&](const auto& readers) { return contains(readers.second, node); };
    EXPECT_EQ(std::count_if(decoding.readers.begin(), decoding.readers.end(), fetches), 1) << node;
  }
  EXPECT_FALSE(decoding.decodes(lost_node, part(3))) << "it has no parity";
}

// The leader of such a job.
class ParityRestore : public ::testing::Test {
 protected:
  using Orders = std::map<NodeId, std::map<std::string, FetchOrder>>;

  ParityRestore() : leader_(Config{}, 2, {}, 0) {
    std::vector<RankAssignment> assignments;
    for (Rank rank = 0; rank < 4; ++rank)
      assignments.push_back({rank, rank, 100 + rank, "", "model", private_shard(rank), 4});
    IncarnationRecord incarnation_record;
    incarnation_record.epoch = 2;
    incarnation_record.incarnation = 2;
    incarnation_record.world_size = 4;
    incarnation_record.restored_ranks = 4;
    incarnation_record.protection = placement::Protection::of_parity(4, 1);
    incarnation_record.restored = restored;
    incarnation_record.decision.verdict = Verdict::restore;
    incarnation_record.decision.checkpoint = restored;
    incarnation_record.decision.cuts = {{"model", 4}};
    incarnation_record.assignments = name_of(2, assignments);
    leader_.on(IncarnationRecordRead{1, incarnation_record});
    leader_.on(AssignmentsRead{incarnation_record.assignments, assignments});
    for (NodeId node = 0; node < 4; ++node) receive(node);
  }
  void receive(NodeId node, const std::vector<PieceInfo>& more = {}, bool has_kept_its_own = true) {
    Report report;
    report.node = node;
    report.arena_id = 100 + node;
    report.agent_id = 1;
    report.sequence = ++sequence_;
    report.epoch = 2;
    if (has_kept_its_own) report.pieces = shard_.on(node);
    report.pieces.insert(report.pieces.end(), more.begin(), more.end());
    for (Rank rank = 0; rank < 4 && node != lost_node; ++rank)
      report.pieces.push_back(piece_of(private_shard(rank), restored, 4));
    RankReport trainer{node, 50 + node, 2, 4, "model", private_shard(node)};
    trainer.waiting = true;
    report.ranks.push_back(trainer);
    leader_.on(node, report, ++now_);
  }
  // What each node is told to fetch.
  Orders orders() {
    Effects effects;
    leader_.reconcile(++now_, effects);
    Orders orders;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || !std::holds_alternative<Directive>(send->message)) continue;
      for (const FetchOrder& order : std::get<Directive>(send->message).fetches)
        orders[send->to][order.piece.shard] = order;
    }
    return orders;
  }

  const SharedShard shard_;

 private:
  Leader leader_;
  std::uint64_t sequence_ = 0;
  TimeMs now_ = 10;
};

TEST_F(ParityRestore, OrdersEveryNodeToDecodeTheLostPartAndFetchParityAlongTheRing) {
  const Orders told = orders();
  for (NodeId node = 0; node < 4; ++node) {
    EXPECT_THAT(told.at(node).at(part(3)).sources, ElementsAre(parity_node)) << node;
    EXPECT_TRUE(told.at(node).at(part(3)).coding_inputs) << node;
    for (NodeId member = 0; member < 3; ++member) {
      const auto found = told.at(node).find(shard_.parity(member).shard);
      ASSERT_EQ(found != told.at(node).end(), node != member) << node << " " << member;
      if (node == member) continue;
      EXPECT_EQ(found->second.sources.front(), (node + 3) % 4) << "for " << node;
      EXPECT_EQ(found->second.chain_from, member);
    }
  }
}

// All others have fetched the inputs by then, or are about to.
TEST_F(ParityRestore, DoesNotChangeTheOrdersWhenOneNodeHasDecoded) {
  orders();
  receive(1, {shard_.data(3)});
  receive(2);
  const Orders told = orders();
  EXPECT_THAT(told.at(2).at(part(3)).sources, ElementsAre(parity_node, 1)) << "node 1 has it if decoding fails";
  EXPECT_TRUE(told.at(2).contains(shard_.parity(1).shard));
  EXPECT_FALSE(told.at(1).contains(part(3)));
  EXPECT_FALSE(told.at(1).contains(shard_.parity(2).shard)) << "it has nothing to decode any more";
}

// With one parity row, the second one can be decoded only from the first one.
TEST_F(ParityRestore, DecodesALaterLossFromAPartDecodedBefore) {
  orders();
  receive(1, {shard_.data(3)});
  receive(lost_node, {shard_.parity(3)});
  receive(0, {shard_.parity(0)}, false);
  receive(2);
  const Orders told = orders();
  ASSERT_TRUE(told.at(2).contains(part(0)));
  EXPECT_TRUE(told.at(2).at(part(0)).coding_inputs);
  EXPECT_EQ(told.at(2).at(part(3)).sources.front(), 1u) << "it is an input now, so nobody decodes it any more";
}

TEST_F(ParityRestore, FetchesADecodedPartIfItCanNoLongerBeDecoded) {
  orders();
  receive(1, {shard_.data(3)});
  receive(0, {shard_.data(0)}, false);
  receive(2);
  const Orders told = orders();
  EXPECT_EQ(told.at(2).at(part(3)).sources.front(), 1u);
}

}  // namespace
}  // namespace ckpt::core::local_decoding_test
