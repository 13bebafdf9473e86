// Parity protects the bytes that it was made of and no others. Every piece of it, and everything that it says of each
// of the pieces that it was made of, is altered in turn.
#include <gtest/gtest.h>

#include "core/leader/restore_decision.hpp"
#include "lone_node.hpp"

namespace ckpt::core::parity_bytes {
namespace {

constexpr Rank ranks = 3;

// What each of three nodes has of a checkpoint: its rank's shards, and its part of their parity.
class ProtectedCheckpoint {
 public:
  explicit ProtectedCheckpoint(CheckpointId checkpoint) {
    for (Rank rank = 0; rank < ranks; ++rank)
      for (const auto& shard : {main_shard(rank), private_shard(rank)})
        of_node[rank].push_back(piece_of(shard, checkpoint, ranks));
    Pieces pieces;
    for (const auto& [node, has] : of_node)
      for (const PieceInfo& piece : has) pieces[piece.shard].push_back({node, &piece});
    std::vector<PieceInfo> parity;
    for (const auto& name : {main_shard, private_shard}) {
      const std::vector<std::string> shards{name(0), name(1), name(2)};
      for (std::uint32_t member = 0; member < ranks; ++member)
        parity.push_back(plan_encoding({1, member, shards}, checkpoint, ranks, pieces)->piece);
    }
    for (PieceInfo& piece : parity) {
      piece.root_digest = 77 + piece.parity_manifest.member;
      of_node[piece.parity_manifest.member].push_back(piece);
    }
  }
  std::map<NodeId, std::vector<PieceInfo>> of_node;
};

struct Alteration {
  std::string name;
  NodeId node = 0;
  std::function<void(std::vector<PieceInfo>&)> alter;  // what the node has
};

// Of a checkpoint of which some data, or what parity says of its data, is not what it was.
std::vector<Alteration> alterations() {
  std::vector<Alteration> all;
  for (NodeId node = 0; node < ranks; ++node) {
    for (const std::size_t i : {0u, 1u})
      all.push_back({"data", node, [=](auto& pieces) { pieces[i].root_digest ^= 1; }});
    for (const std::size_t i : {2u, 3u}) {
      for (std::size_t member = 0; member < ranks; ++member) {
        all.push_back(
            {"digest", node, [=](auto& pieces) { pieces[i].parity_manifest.sources[member].root_digest ^= 1; }});
      }
    }
  }
  return all;
}

// What makes parity another one than is wanted.
std::vector<Alteration> other_parity() {
  std::vector<Alteration> all;
  for (NodeId node = 0; node < ranks; ++node) {
    for (const std::size_t i : {2u, 3u}) {
      const auto erase = [=](auto& pieces) { pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(i)); };
      all.push_back({"none", node, erase});
      all.push_back({"member", node, [=](auto& pieces) { pieces[i].parity_manifest.member = (node + 1) % ranks; }});
      all.push_back({"rows", node, [=](auto& pieces) { pieces[i].parity_manifest.rows = 2; }});
      for (std::size_t member = 0; member < ranks; ++member) {
        const auto parity_source = [=](auto& pieces) -> ParitySource& {
          return pieces[i].parity_manifest.sources[member];
        };
        all.push_back({"shard", node, [=](auto& pieces) { parity_source(pieces).shard += "x"; }});
        all.push_back({"length", node, [=](auto& pieces) { ++parity_source(pieces).length_bytes; }});
        all.push_back({"layout", node, [=](auto& pieces) { ++parity_source(pieces).layout_bytes; }});
      }
    }
  }
  return all;
}

CheckpointId committed_with(const ProtectedCheckpoint& checkpoint, std::int64_t iteration) {
  LoneLeader leader(ranks, placement::Protection::of_parity(ranks, 1));
  for (const auto& [node, pieces] : checkpoint.of_node) {
    Report report = leader.report_of(node, iteration);
    report.pieces = pieces;
    leader.say(report);
  }
  return leader.status().committed;
}

TEST(ParityOfOtherBytes, CommitsNothing) {
  const CheckpointId checkpoint(1, 4);
  ASSERT_EQ(committed_with(ProtectedCheckpoint(checkpoint), 4), checkpoint);
  for (const auto& list : {alterations(), other_parity()}) {
    for (const Alteration& each : list) {
      ProtectedCheckpoint altered(checkpoint);
      each.alter(altered.of_node.at(each.node));
      EXPECT_EQ(committed_with(altered, 4), CheckpointId()) << each.name << " on node " << each.node;
    }
  }
}

RecoveryAnswer recover(const ProtectedCheckpoint& older, const ProtectedCheckpoint& newer) {
  std::vector<Report> reports(ranks);
  RecoveryQuestion question;
  std::vector<std::string> shards;
  for (NodeId node = 0; node < ranks; ++node) {
    reports[node].node = node;
    for (const auto* checkpoint : {&older, &newer})
      for (const PieceInfo& piece : checkpoint->of_node.at(node)) reports[node].pieces.push_back(piece);
    question.reports.push_back(&reports[node]);
    for (const auto& shard : {main_shard(node), private_shard(node)}) shards.push_back(shard);
  }
  question.shards.assign(shards.begin(), shards.end());
  question.world_size = ranks;
  return plan_recovery(question);
}

TEST(ParityOfOtherBytes, CountsAsSilentCorruptionAndItsCheckpointIsSkipped) {
  const ProtectedCheckpoint older(CheckpointId(1, 3)), newer(CheckpointId(1, 4));
  ASSERT_EQ(recover(older, newer).decision.checkpoint, CheckpointId(1, 4));
  for (const Alteration& each : alterations()) {
    ProtectedCheckpoint altered = newer;
    each.alter(altered.of_node.at(each.node));
    const RecoveryAnswer answer = recover(older, altered);
    EXPECT_EQ(answer.decision.checkpoint, CheckpointId(1, 3)) << each.name << " on node " << each.node;
    EXPECT_NE(answer.alarm, "") << each.name << " on node " << each.node;
  }
}

}  // namespace
}  // namespace ckpt::core::parity_bytes
