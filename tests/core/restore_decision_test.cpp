#include "core/leader/restore_decision.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

using ::testing::HasSubstr;

// An incarnation of three nodes with one rank each. Shard `r` lies on node r and on the next one.
class Recovery : public ::testing::Test {
 protected:
  static constexpr std::uint64_t incarnation = 2;

  Recovery() {
    for (NodeId node = 0; node < 3; ++node) {
      reports_[node].node = node;
      reports_[node].arena_id = arena_of(node);
      question_.members.push_back({node, arena_of(node)});
      for (const auto& shard : {main_shard(node), private_shard(node)}) names_.push_back(shard);
    }
    question_.shards.assign(names_.begin(), names_.end());
    question_.members_incarnation = incarnation;
    question_.world_size = 3;
  }

  static std::uint64_t arena_of(NodeId node) { return 100 + node; }

  void store(NodeId node, Rank rank, std::int64_t iteration) {
    const CheckpointId checkpoint(incarnation, iteration);
    for (const auto& shard : {main_shard(rank), private_shard(rank)}) {
      reports_[node].pieces.push_back(piece_of(shard, checkpoint, 3));
    }
    reports_[node].newest_seen = std::max(reports_[node].newest_seen, checkpoint);
  }
  void store_everywhere(std::int64_t iteration) {
    for (Rank rank = 0; rank < 3; ++rank) {
      store(rank, rank, iteration);
      store((rank + 1) % 3, rank, iteration);
    }
  }
  RecoveryAnswer ask(const std::vector<NodeId>& present) {
    question_.reports.clear();
    question_.missing.clear();
    for (NodeId node = 0; node < 3; ++node) {
      if (std::find(present.begin(), present.end(), node) != present.end())
        question_.reports.push_back(&reports_[node]);
      else
        question_.missing.push_back(node);
    }
    return plan_recovery(question_);
  }

  std::map<NodeId, Report> reports_;
  std::vector<std::string> names_;  // of the shards
  RecoveryQuestion question_;
};

TEST_F(Recovery, StartsFreshIfNothingWasEverStored) {
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.verdict, Verdict::fresh);
  EXPECT_TRUE(answer.final);
  EXPECT_FALSE(answer.decision.status_unknown);
}

// What goes to storage was committed, whether any node that is left has heard of it or not.
TEST_F(Recovery, UsesACommitThatOnlyStorageKnowsAsBase) {
  question_.first_commit = CheckpointId(incarnation, 2);
  for (const std::string& name : names_) question_.stored.push_back(piece_of(name, CheckpointId(incarnation, 4), 3));
  EXPECT_EQ(ask({0, 1, 2}).decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation, 4));
  store_everywhere(5);
  EXPECT_EQ(ask({0, 1, 2}).decision.checkpoint, CheckpointId(incarnation, 5));
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation, 4));
}

// Nobody that is left has heard of it.
TEST_F(Recovery, KeepsACommitThatOnlyTheStoreKnows) {
  store_everywhere(4);
  store_everywhere(5);
  question_.first_commit = CheckpointId(incarnation, 4);
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 5));
  EXPECT_EQ(answer.base, CheckpointId(incarnation, 4));
}

TEST_F(Recovery, ChoosesTheNewestCompleteCheckpoint) {
  store_everywhere(4);
  store(0, 0, 5);
  store(1, 1, 5);  // shard 2 was never captured at 5
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.verdict, Verdict::restore);
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_FALSE(answer.decision.behind);
}

TEST_F(Recovery, DoesNotWaitForANodeThatCannotKnowANewerCommit) {
  store_everywhere(4);
  const RecoveryAnswer answer = ask({0, 1});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_TRUE(answer.final);
  EXPECT_FALSE(answer.decision.status_unknown);
}

TEST_F(Recovery, HolderWithoutANewerCheckpointProvesThatItWasNotCommitted) {
  store_everywhere(4);
  store(0, 0, 5);  // node 1 should hold shard 0 too, and has it at 4 only
  const RecoveryAnswer answer = ask({0, 1});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_TRUE(answer.final);
  EXPECT_FALSE(answer.decision.status_unknown);
}

// Rank 0 died within its update. The others may have captured its parts, too, and committed iteration 5 without them.
TEST_F(Recovery, PartOfADeadRankDoesNotDisproveANewerCommit) {
  names_ = {"model", private_shard(0), private_shard(1), private_shard(2)};
  question_.shards.assign(names_.begin(), names_.end());
  question_.main_shard = "model";
  question_.private_shards = {names_[1], names_[2], names_[3]};
  question_.members_share = true;
  const auto add = [&](NodeId node, const std::string& shard, std::int64_t iteration) {
    reports_[node].pieces.push_back(piece_of(shard, CheckpointId(incarnation, iteration), 3));
  };
  for (const auto& part : parts_of("model", 3)) add(0, part, 4);
  for (const Rank rank : {1u, 2u}) add(1, private_shard(rank), 4);
  reports_[1].arena_id += 50;  // what it has came from elsewhere
  add(0, private_shard(0), 4);
  reports_[0].newest_seen = CheckpointId(incarnation, 4);
  EXPECT_FALSE(ask({0, 1}).decision.status_unknown);
  add(0, private_shard(0), 5);
  reports_[0].newest_seen = CheckpointId(incarnation, 5);
  const RecoveryAnswer answer = ask({0, 1});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_TRUE(answer.decision.status_unknown);
}

TEST_F(Recovery, NewerCheckpointOnAllRemainingHoldersMayBeCommitted) {
  for (const NodeId node : {0u, 1u}) {
    for (const Rank rank : {0u, 1u}) {
      store(node, rank, 4);
      store(node, rank, 5);
    }
  }
  store(2, 2, 4);
  reports_[2].arena_id += 50;  // what it has came from elsewhere: it was not a member
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_TRUE(answer.decision.status_unknown);
  EXPECT_FALSE(answer.decision.text.empty());
}

TEST_F(Recovery, ReportsBehindWhenAKnownCommitIsLost) {
  store_everywhere(4);
  reports_[1].highest_commit = CheckpointId(incarnation, 7);
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_TRUE(answer.decision.behind);
  EXPECT_THAT(answer.decision.text, HasSubstr("iteration 7"));
}

TEST_F(Recovery, ReportsBehindWhenOnlyTheStoreKnowsTheCommit) {
  store_everywhere(4);
  question_.first_commit = CheckpointId(incarnation + 1, 1);
  EXPECT_TRUE(ask({0, 1, 2}).decision.behind);
}

// An incarnation that wrote it down as its base and was lost before it told anybody.
TEST_F(Recovery, ReportsBehindWhenTheLastIncarnationsBaseIsLost) {
  store_everywhere(4);
  question_.members_incarnation = incarnation + 1;
  question_.restored = question_.base = CheckpointId(incarnation, 5);
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_TRUE(answer.decision.behind);
  EXPECT_FALSE(answer.decision.status_unknown);
}

// The nodes that may have heard that it was committed were lost before that incarnation, its own know nothing of it.
TEST_F(Recovery, RestoredCheckpointOfTheLastIncarnationMayHaveBeenACommit) {
  store_everywhere(4);
  question_.members_incarnation = incarnation + 1;
  question_.base = CheckpointId(incarnation, 4);
  question_.restored = CheckpointId(incarnation, 5);
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_FALSE(answer.decision.behind);
  EXPECT_TRUE(answer.decision.status_unknown);
  EXPECT_THAT(answer.decision.text, HasSubstr("iteration 5"));
  EXPECT_FALSE(ask({0, 1}).final) << "node 2 may have it";
  store_everywhere(5);
  EXPECT_EQ(ask({0, 1, 2}).decision.checkpoint, CheckpointId(incarnation, 5));
  EXPECT_FALSE(ask({0, 1, 2}).decision.status_unknown);
}

TEST_F(Recovery, SkipsACheckpointOnWhichRanksDisagreeAndReportsIt) {
  store_everywhere(4);
  store_everywhere(5);
  for (PieceInfo& piece : reports_[1].pieces) {
    if (piece.shard == main_shard(0) && piece.checkpoint == CheckpointId(incarnation, 5)) piece.root_digest += 1;
  }
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_THAT(answer.alarm, HasSubstr("shard rank0 of iteration 5 differs"));
  EXPECT_THAT(answer.alarm, HasSubstr("node 1 does not match node 0"));
}

// All that is left of the other bytes is the parity that was made of them.
TEST_F(Recovery, ParityRevealsThatRanksDisagreed) {
  store_everywhere(4);
  store_everywhere(5);
  const auto add_parity = [&](std::uint64_t change) {
    const PieceInfo shard = piece_of(main_shard(0), CheckpointId(incarnation, 5), 3);
    PieceInfo parity = piece_of(parity_name(1, {shard.shard, main_shard(2)}, 1), shard.checkpoint, 3);
    parity.parity_manifest = {
        1, 1, {{shard.shard, shard.length_bytes, shard.layout_bytes, shard.root_digest + change}, {}}};
    reports_[2].pieces.push_back(parity);
  };
  add_parity(0);
  EXPECT_EQ(ask({0, 1, 2}).decision.checkpoint, CheckpointId(incarnation, 5));
  EXPECT_EQ(ask({0, 1, 2}).alarm, "");
  reports_[2].pieces.pop_back();
  add_parity(1);
  EXPECT_EQ(ask({0, 1, 2}).decision.checkpoint, CheckpointId(incarnation, 4));
  EXPECT_THAT(ask({0, 1, 2}).alarm, HasSubstr("node 2 does not match node 0"));
}

TEST_F(Recovery, ReplacedNodeIsNoWitness) {
  store_everywhere(4);
  for (NodeId node = 0; node < 3; ++node) reports_[node].arena_id += 50;  // answer under the old names, know nothing
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.verdict, Verdict::restore);
  EXPECT_TRUE(answer.decision.status_unknown);
  EXPECT_TRUE(answer.final) << "they are there: there is nobody to wait for";
}

TEST_F(Recovery, WaitsForNodesThatMayHoldLostPieces) {
  store(0, 0, 4);
  reports_[0].highest_commit = CheckpointId(incarnation, 4);
  const RecoveryAnswer answer = ask({0});
  EXPECT_EQ(answer.decision.verdict, Verdict::lost);
  EXPECT_FALSE(answer.final);
  EXPECT_THAT(answer.decision.text, HasSubstr("no answer comes from the nodes with these numbers: 1, 2 ("));
}

TEST_F(Recovery, KeepsTheLastCommitUntilANewerCheckpointIsSafe) {
  store_everywhere(4);
  store_everywhere(5);
  reports_[2].highest_commit = CheckpointId(incarnation, 4);
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.checkpoint, CheckpointId(incarnation, 5));
  EXPECT_EQ(answer.base, CheckpointId(incarnation, 4));
}

// Nobody is known to be missing, and nobody to be all.
TEST_F(Recovery, WaitsIfTheLastIncarnationsMembersAreUnknown) {
  store_everywhere(4);
  question_.members.clear();
  EXPECT_FALSE(ask({0, 1, 2}).final);
  question_.members_are_lost = true;
  EXPECT_FALSE(ask({0, 1, 2}).final);
  EXPECT_TRUE(ask({0, 1, 2}).decision.status_unknown);
  for (auto& [node, report] : reports_) report.pieces.clear();
  EXPECT_EQ(ask({0, 1, 2}).decision.verdict, Verdict::fresh);
  EXPECT_FALSE(ask({0, 1, 2}).final);
  EXPECT_TRUE(ask({0, 1, 2}).decision.status_unknown);
}

// The store lost the incarnation's record.
TEST_F(Recovery, StartsFreshImmediatelyOnlyIfNoNodeEverHadAPiece) {
  question_.members.clear();
  EXPECT_TRUE(ask({0, 1, 2}).final) << "a first start ended before it was decided";
  reports_[1].newest_seen = CheckpointId(incarnation, 4);
  const RecoveryAnswer answer = ask({0, 1, 2});
  EXPECT_EQ(answer.decision.verdict, Verdict::fresh);
  EXPECT_FALSE(answer.final) << "another node may have all of a checkpoint";
}

TEST_F(Recovery, VoidCheckpointStaysVoidAfterAnIncarnationWithoutCaptures) {
  store_everywhere(5);
  question_.members_incarnation = incarnation + 1;
  question_.restored = CheckpointId(incarnation, 5);
  question_.base = CheckpointId(incarnation - 1, 2);
  reports_[2].highest_commit = CheckpointId(incarnation - 1, 4);
  EXPECT_EQ(ask({0, 1, 2}).decision.checkpoint, CheckpointId(incarnation, 5));
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation - 1, 2));
  reports_[1].highest_commit = CheckpointId(incarnation, 4);
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation, 4));
}

// Its nodes are back. The last incarnation went on without them from an older checkpoint, and nobody kept the copies.
TEST_F(Recovery, KeepsTheOlderCommitUntilTheReturnedOneHasAllCopies) {
  store_everywhere(4);
  store_everywhere(5);
  for (const NodeId node : {0u, 1u}) reports_[node].highest_commit = CheckpointId(incarnation, 5);
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation, 5)) << "no incarnation passed it over";
  question_.members_incarnation = incarnation + 1;
  question_.restored = question_.base = CheckpointId(incarnation, 4);
  EXPECT_EQ(ask({0, 1, 2}).decision.checkpoint, CheckpointId(incarnation, 5));
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation, 4));
  question_.first_commit = CheckpointId(incarnation, 5);
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation, 4));
  question_.members_incarnation = 0;
  question_.restored = question_.base = CheckpointId();
  EXPECT_EQ(ask({0, 1, 2}).base, CheckpointId(incarnation, 5)) << "nobody knows of a last incarnation";
}

// The last incarnation went back to checkpoint 4, which is lost now. What lies beyond is void.
TEST_F(Recovery, IgnoresTheWorldSizeOfAbandonedCheckpoints) {
  store_everywhere(5);
  reports_[0].highest_commit = CheckpointId(incarnation, 4);
  question_.world_size = 2;
  question_.members_incarnation = incarnation + 1;
  question_.restored = question_.base = CheckpointId(incarnation, 4);
  EXPECT_EQ(ask({0, 1, 2}).decision.verdict, Verdict::lost);
}

TEST_F(Recovery, RefusesACheckpointOfAnotherWorldSize) {
  store_everywhere(4);
  question_.world_size = 2;
  EXPECT_EQ(ask({0, 1, 2}).decision.verdict, Verdict::mismatch);
}

}  // namespace
}  // namespace ckpt::core
