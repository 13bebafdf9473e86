// What goes to storage, when, and how a job comes back from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

using ::testing::HasSubstr;

// Boots anew, because the nodes are configured when they boot. The first commit, of iteration 0, is on storage already.
struct Stored : Cluster {
  explicit Stored(std::uint32_t nodes, std::uint32_t ranks, std::int64_t every = 10) : Cluster(nodes, ranks) {
    storage = Cluster::Storage{};
    storage_every = every;
    for (NodeId node = 0; node < nodes; ++node) boot(node);
    advance(3000);
    start_incarnation(own_node);
    begin_training();
    train(0, 0);
    advance(500);
    stored.clear();
  }
  // On storage, without the first commit.
  std::size_t later_steps() const { return storage->steps.size() - storage->steps.count(CheckpointId(1, 0)); }
  void train(std::int64_t first, std::int64_t last) {
    for (std::int64_t k = first; k <= last; ++k) snapshot_all(k);
  }
  void start_again() {
    ready.clear();
    failed.clear();
    start_incarnation(own_node);
    advance(9000);
  }
};

TEST(LeaderStorage, StoresTheFirstCommitAtOrAfterEveryMultiple) {
  Stored job(4, 4);
  job.train(1, 9);
  EXPECT_EQ(job.later_steps(), 0u);
  job.train(10, 19);
  ASSERT_EQ(job.later_steps(), 1u);
  EXPECT_EQ(job.storage->steps.rbegin()->first, CheckpointId(1, 10));
  EXPECT_EQ(job.storage->steps.rbegin()->second.size(), 8u);  // each shard once, though two nodes hold it
  job.train(21, 24);
  EXPECT_EQ(job.storage->steps.rbegin()->first, CheckpointId(1, 21));
  EXPECT_EQ(job.status(0).stored, CheckpointId(1, 21));
}

TEST(LeaderStorage, StoresTheFirstCommitAfterAFreshStart) {
  Stored job(1, 1);
  ASSERT_EQ(job.storage->steps.size(), 1u);
  EXPECT_EQ(job.storage->steps.begin()->first, CheckpointId(1, 0));
  EXPECT_EQ(job.status(0).stored_skipped, 0u);
}

TEST(LeaderStorage, RestartDoesNotRewriteStoredCheckpoints) {
  for (const bool memory_is_lost : {false, true}) {
    Stored job(2, 2);
    job.storage->writing = false;
    if (memory_is_lost) job.lose_everything();
    job.start_again();
    ASSERT_EQ(job.ready.size(), 2u);
    EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 0));
    job.begin_training();
    job.train(1, 9);
    EXPECT_TRUE(job.storage->held_writes.empty());
    job.train(10, 10);
    EXPECT_EQ(job.storage->held_writes.size(), 2u);  // of checkpoint 10, by each node
  }
}

TEST(LeaderStorage, EveryTrainerLearnsWhenItsCheckpointIsCompleteOnStorage) {
  Stored job(4, 4);
  job.train(1, 9);
  EXPECT_TRUE(job.stored.empty());
  job.storage->writing = false;
  job.train(10, 14);
  EXPECT_TRUE(job.stored.empty()) << "it is committed, but not written yet";
  job.storage->writing = true;
  for (const auto& [node, write] : std::exchange(job.storage->held_writes, {})) {
    for (const SlotRef& slot : write.slots)
      job.storage->written[write.checkpoint][slot.shard] = piece_of(slot.shard, write.checkpoint, 4);
    job.feed(node, WriteEnded{write.checkpoint, ""});
  }
  job.advance(500);
  ASSERT_EQ(job.stored.size(), 4u);
  for (const auto& [rank, checkpoint] : job.stored) EXPECT_EQ(checkpoint, CheckpointId(1, 10)) << rank;
}

TEST(LeaderStorage, BusyStorageTakesTheNewestCommitAndCountsSkippedOnes) {
  Stored job(2, 2);
  job.storage->writing = false;
  job.train(1, 45);
  ASSERT_EQ(job.storage->held_writes.size(), 2u);  // of checkpoint 10, by each node
  job.storage->writing = true;
  const auto held = std::exchange(job.storage->held_writes, {});
  for (const auto& [node, write] : held) {
    EXPECT_EQ(write.checkpoint, CheckpointId(1, 10));
    for (const SlotRef& slot : write.slots)
      job.storage->written[write.checkpoint][slot.shard] = piece_of(slot.shard, write.checkpoint, 2);
    job.feed(node, WriteEnded{write.checkpoint, ""});
  }
  job.advance(500);
  EXPECT_EQ(job.later_steps(), 2u);
  EXPECT_EQ(job.storage->steps.rbegin()->first, CheckpointId(1, 45));
  EXPECT_EQ(job.status(0).stored_skipped, 2u);  // 20 and 30
}

TEST(LeaderStorage, DoesNotReuseASlotThatIsBeingWritten) {
  Stored job(2, 2);
  job.storage->writing = false;
  job.train(1, 30);
  EXPECT_EQ(job.commits.at(0), CheckpointId(1, 30));  // training goes on all the while
  for (const auto& [node, write] : job.storage->held_writes) {
    for (const SlotRef& slot : write.slots) {
      const auto pieces = job.status(node).pieces;
      EXPECT_TRUE(std::any_of(pieces.begin(), pieces.end(), [&](const PieceInfo& piece) {
        return piece.shard == slot.shard && piece.checkpoint == CheckpointId(1, 10);
      }));
      const auto& granted = job.granted().at(static_cast<Rank>(node));
      EXPECT_EQ(std::count(granted.begin(), granted.end(), slot), 0);
    }
  }
}

TEST(LeaderStorage, StoresACommitImmediatelyWhenItLosesACopy) {
  Stored job(4, 4, 1000);
  job.train(1, 3);
  job.advance(500);
  EXPECT_EQ(job.later_steps(), 0u);
  job.lose(*job.current_leader() == 3 ? 2 : 3);
  job.advance(8000);
  ASSERT_EQ(job.later_steps(), 1u);
  EXPECT_EQ(job.storage->steps.rbegin()->first, CheckpointId(1, 3));
}

TEST(LeaderStorage, StoresACommitImmediatelyWhenItsLeaderIsLostWithACopy) {
  Stored job(4, 4, 1000);
  job.train(1, 3);
  job.advance(500);
  job.lose(*job.current_leader());
  job.advance(12'000);  // nobody takes the lost rank's place
  ASSERT_EQ(job.later_steps(), 1u);
  EXPECT_EQ(job.storage->steps.rbegin()->first, CheckpointId(1, 3));
}

TEST(LeaderStorage, NewLeaderDoesNotCountUnreportedCopiesAsLost) {
  Stored job(4, 4, 1000);
  job.train(1, 3);
  job.change_leader();
  job.advance(5000);
  EXPECT_EQ(job.later_steps(), 0u);
}

TEST(LeaderStorage, ReportsAndRepeatsAFailedWrite) {
  Stored job(2, 2);
  job.storage->trouble = "no space";
  job.train(1, 12);
  job.advance(500);
  EXPECT_EQ(job.later_steps(), 0u);
  EXPECT_EQ(job.status(0).storage_trouble, "no space");
  job.storage->trouble.clear();
  job.advance(5000);
  ASSERT_EQ(job.later_steps(), 1u);
  EXPECT_EQ(job.storage->steps.rbegin()->first, CheckpointId(1, 12));
  EXPECT_EQ(job.status(1).storage_trouble, "");
}

TEST(LeaderStorage, RemovesAFailedCheckpointsFilesBeforeTheNextWrite) {
  Stored job(2, 2);
  job.storage->trouble = "no space";
  job.train(1, 12);
  EXPECT_EQ(job.storage->written[CheckpointId(1, 10)].size(), 4u);
  job.storage->trouble.clear();
  job.advance(5000);
  EXPECT_EQ(job.later_steps(), 1u);
  EXPECT_EQ(job.storage->written[CheckpointId(1, 10)].size(), 0u);
  EXPECT_EQ(job.storage->written[CheckpointId(1, 12)].size(), 4u);
}

TEST(LeaderStorage, KeepsStoredPiecesThatAnotherLeaderMayComplete) {
  Stored job(2, 2);
  job.storage->committing = false;
  job.train(1, 12);
  ASSERT_EQ(job.storage->held_commits.size(), 1u);
  job.lose(*job.current_leader());
  job.advance(12'000);
  ASSERT_EQ(job.storage->held_commits.size(), 2u);
  EXPECT_EQ(job.storage->held_commits[1].second.checkpoint, CheckpointId(1, 12));
  EXPECT_EQ(job.storage->written[CheckpointId(1, 10)].size(), 4u);
}

TEST(LeaderStorage, CompletesACheckpointAfterItsIncarnationEnded) {
  Stored job(2, 2);
  job.storage->committing = false;
  job.train(1, 12);
  const auto held = job.storage->held_commits;
  ASSERT_EQ(held.size(), 1u);
  job.start_again();
  job.begin_training();
  job.train(13, 25);
  EXPECT_EQ(job.storage->held_commits.size(), 1u);  // nothing else meanwhile
  EXPECT_EQ(job.storage->written[CheckpointId(1, 10)].size(), 4u);
  job.storage->committing = true;
  job.finish_commit(held[0].first, held[0].second);
  job.advance(3000);
  EXPECT_TRUE(job.storage->steps.contains(CheckpointId(1, 10)));
  EXPECT_TRUE(job.storage->steps.contains(CheckpointId(2, 25)));
}

TEST(LeaderStorage, NodeWithoutTheStorageOptionSaysSo) {
  Stored job(2, 2);
  const NodeId other = *job.current_leader() == 0 ? 1 : 0;
  job.without_storage = {other};
  job.boot(other);
  job.start_again();
  job.begin_training();
  job.train(1, 12);
  job.advance(500);
  EXPECT_EQ(job.later_steps(), 0u);
  EXPECT_THAT(job.status(0).storage_trouble, HasSubstr("the same option storage"));
}

TEST(LeaderStorage, RestoresFromStorageInANewerIncarnationAfterLosingAllNodesAndRecords) {
  Stored job(4, 4);
  job.train(1, 14);
  job.lose_everything();
  job.start_again();
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.incarnation(), 2u);
  for (const auto& [rank, ready] : job.ready) {
    EXPECT_EQ(ready.decision.verdict, Verdict::restore);
    EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 10));
    EXPECT_EQ(ready.main[0].tier, Tier::persistent);
  }
  for (const auto& [shard, times] : job.storage->reads) EXPECT_EQ(times, 1) << shard;
  EXPECT_EQ(job.status(0).copies_now, 2u);  // and is safe in memory again
  job.begin_training();
  job.train(11, 20);
  EXPECT_EQ(job.storage->steps.rbegin()->first, CheckpointId(2, 20));
}

TEST(LeaderStorage, ReadsOnlyPiecesThatNoNodeHasFromStorage) {
  Stored job(4, 4);
  job.train(1, 10);  // in memory and on storage
  job.lose(2);
  job.lose(3);
  job.boot(2);
  job.boot(3);
  job.start_again();
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
  EXPECT_EQ(job.ready.at(0).main[0].tier, Tier::local);
  EXPECT_EQ(job.ready.at(2).main[0].tier, Tier::persistent);
  EXPECT_EQ(job.storage->reads.size(), 4u);  // main and private shards of ranks 2 and 3
}

TEST(LeaderStorage, RestoresAnOlderCheckpointFromStorageAndSaysBehind) {
  Stored job(4, 4);
  job.train(1, 14);
  job.lose(2);
  job.lose(3);
  job.boot(2);
  job.boot(3);
  job.start_again();
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
  EXPECT_TRUE(job.ready.at(0).decision.behind);
  EXPECT_THAT(job.ready.at(0).decision.text, HasSubstr("iteration 14"));
}

TEST(LeaderStorage, RestoresTheNewestRemainingCheckpointWhateverNodesAreLost) {
  for (unsigned lost = 0; lost < 16; ++lost) {
    Stored job(4, 4);  // groups {0, 1} and {2, 3}
    job.train(1, 14);
    for (NodeId node = 0; node < 4; ++node) {
      if ((lost >> node & 1) != 0) job.lose(node);
    }
    for (NodeId node = 0; node < 4; ++node) {
      if ((lost >> node & 1) != 0) job.boot(node);
    }
    job.start_again();
    const bool group_lost = (lost & 3) == 3 || (lost >> 2 & 3) == 3;
    ASSERT_EQ(job.ready.size(), 4u) << lost;
    for (const auto& [rank, ready] : job.ready) {
      EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, group_lost ? 10 : 14)) << lost;
      EXPECT_EQ(ready.decision.behind, group_lost && lost != 15) << lost;
    }
    EXPECT_EQ(job.status(0).copies_now, 2u) << lost;
  }
}

TEST(LeaderStorage, SilentStorageDoesNotCountAsEmpty) {
  Stored job(2, 2);
  job.train(1, 14);
  job.storage->trouble = "it hangs";
  job.lose_everything();
  job.start_again();
  EXPECT_TRUE(job.ready.empty());
  EXPECT_TRUE(job.failed.empty());
  job.storage->trouble.clear();
  job.advance(9000);
  ASSERT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
}

TEST(LeaderStorage, SkipsAWithheldCheckpointAfterADeadlineAndReportsIt) {
  Stored job(2, 2);
  job.train(1, 14);
  job.storage->withheld = "step-00000020 cannot be read";
  job.lose_everything();
  job.start_again();
  EXPECT_TRUE(job.ready.empty());
  EXPECT_EQ(job.status(0).storage_trouble, "step-00000020 cannot be read");
  job.advance(25'000);
  ASSERT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
  EXPECT_TRUE(job.ready.at(0).decision.status_unknown);
  EXPECT_THAT(job.ready.at(0).decision.text, HasSubstr("step-00000020 cannot be read"));
}

TEST(LeaderStorage, DoesNotWaitForeverForALostNodeOrWithheldCheckpoint) {
  Stored job(4, 4);
  job.train(1, 14);
  job.storage->withheld = "step-00000020 cannot be read";
  for (NodeId node = 0; node < 4; ++node) job.lose(node);
  for (NodeId node = 0; node < 3; ++node) job.boot(node);
  job.advance(5000);
  job.ready.clear();
  job.start_incarnation([](Rank rank) { return std::min<NodeId>(rank, 2); });
  job.advance(35'000);
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
}

TEST(LeaderStorage, RestoresACheckpointThatStorageWithheldForAWhile) {
  Stored job(2, 2);
  job.train(1, 14);
  job.storage->withheld = "it cannot be read";
  const auto steps = std::exchange(job.storage->steps, {});
  job.storage->newest_incarnation = 1;
  job.lose_everything();
  job.start_again();
  EXPECT_TRUE(job.ready.empty() && job.failed.empty());
  job.storage->steps = steps;
  job.storage->withheld.clear();
  job.advance(5000);
  ASSERT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
  EXPECT_FALSE(job.ready.at(0).decision.status_unknown && job.ready.at(0).decision.text.empty());
}

TEST(LeaderStorage, RemembersStorageContentsAfterStorageFallsSilent) {
  Stored job(2, 2);
  job.train(1, 14);
  job.storage->withheld = "step-00000020 cannot be read";
  job.lose_everything();
  job.start_again();
  job.advance(12'000);
  job.storage->trouble = "it hangs";
  job.advance(15'000);
  EXPECT_EQ(job.incarnation_record().decision.checkpoint, CheckpointId(1, 10));
  job.storage->trouble.clear();
  job.advance(5000);
  ASSERT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
}

TEST(LeaderStorage, NewLeaderDoesNotDeclareStoredStateLostWithoutAskingStorage) {
  Stored job(4, 4);
  job.train(1, 14);
  job.lose_everything();
  job.storage->read_trouble = "slow";
  job.start_again();
  ASSERT_EQ(job.incarnation_record().decision.checkpoint, CheckpointId(1, 10));
  job.storage->trouble = "it hangs";
  job.change_leader();
  job.advance(12'000);
  EXPECT_TRUE(job.failed.empty());
  job.storage->trouble.clear();
  job.storage->read_trouble.clear();
  job.advance(9000);
  EXPECT_EQ(job.ready.size(), 4u);
}

TEST(LeaderStorage, FirstIncarnationWaitsUntilStorageReportsEarlierOnes) {
  Stored job(2, 2);
  job.train(1, 14);
  job.storage->withheld = "a directory cannot be listed";
  job.storage->knows_incarnations = false;
  job.lose_everything();
  job.start_again();
  job.advance(40'000);
  EXPECT_EQ(job.incarnation(), 0u);
  EXPECT_EQ(job.status(0).storage_trouble, "a directory cannot be listed");
  job.storage->knows_incarnations = true;
  job.storage->withheld.clear();
  job.storage->newest_incarnation = 5;
  job.advance(9000);
  ASSERT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.incarnation(), 6u);
}

TEST(LeaderStorage, CountsACheckpointCompletedBeforeTheDecision) {
  Stored job(4, 4);  // groups {0, 1} and {2, 3}
  job.storage->committing = false;
  job.train(1, 12);
  const auto held = job.storage->held_commits;
  ASSERT_EQ(held.size(), 1u);
  const NodeId first = *job.current_leader() < 2 ? 2 : 0;  // the group without the leader
  for (const NodeId node : {first, first + 1}) {
    job.lose(node);
    job.boot(node);
  }
  job.start_again();
  EXPECT_TRUE(job.ready.empty() && job.failed.empty());
  job.storage->committing = true;
  job.finish_commit(held[0].first, held[0].second);
  job.advance(9000);
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
}

TEST(LeaderStorage, SkipsACheckpointThatNoNodeCanRead) {
  Stored job(4, 4);
  job.train(1, 24);
  job.storage->unreadable.insert(CheckpointId(1, 20));
  job.lose_everything();
  job.start_again();
  EXPECT_TRUE(job.ready.empty());
  job.advance(45'000);
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
  EXPECT_TRUE(job.ready.at(0).decision.behind);
}

TEST(LeaderStorage, AnotherNodeReadsWhatOneNodeCannot) {
  Stored job(4, 4);
  job.train(1, 14);
  job.storage->cannot_read = {0};
  job.lose_everything();
  job.start_again();
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
}

TEST(LeaderStorage, ReportsLostInsteadOfFreshIfNoStoredCheckpointIsUsable) {
  Stored job(2, 2);
  job.storage->steps.clear();
  job.storage->unusable = {"step-00000010 is damaged"};
  job.storage->newest_incarnation = 7;
  job.lose_everything();
  job.start_again();
  ASSERT_EQ(job.failed.size(), 2u);
  EXPECT_EQ(job.failed.at(0).error, RestoreError::lost);
  EXPECT_THAT(job.failed.at(0).text, HasSubstr("step-00000010 is damaged"));
  EXPECT_EQ(job.incarnation(), 8u);  // newer than whatever lies there
}

TEST(LeaderStorage, LeaderWithoutTheStorageOptionDoesNotIgnoreStorage) {
  Stored job(2, 2);
  job.train(1, 14);
  job.without_storage = {0};
  job.lose_everything();
  ASSERT_EQ(*job.current_leader(), 0u);
  job.start_again();
  EXPECT_TRUE(job.ready.empty() && job.failed.empty());
  EXPECT_THAT(job.status(1).storage_trouble, HasSubstr("the same option storage"));
}

TEST(LeaderStorage, ReportsWhyStorageCannotBeReadUntilItCan) {
  Stored job(2, 2);
  job.train(1, 14);
  job.storage->read_trouble = "a server is away";
  job.lose_everything();
  job.start_again();
  EXPECT_TRUE(job.ready.empty());
  EXPECT_EQ(job.status(0).storage_trouble, "a server is away");
  EXPECT_EQ(job.status(1).storage_trouble, "a server is away");
  job.storage->read_trouble.clear();
  job.advance(9000);
  EXPECT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.status(0).storage_trouble, "");
}

TEST(LeaderStorage, RestoresFromMemoryWithoutStorage) {
  Stored job(2, 2);
  job.train(1, 14);
  job.storage->trouble = "it hangs";
  job.lose(1);
  job.boot(1);
  job.start_again();
  ASSERT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 14));
}

TEST(LeaderStorage, SkipsADamagedCheckpointForTheNextOlderOne) {
  Stored job(4, 4);
  job.train(1, 24);
  ASSERT_EQ(job.later_steps(), 2u);
  job.storage->damaged.insert(CheckpointId(1, 20));
  job.lose_everything();
  job.start_again();
  ASSERT_EQ(job.ready.size(), 4u);
  for (const auto& [rank, ready] : job.ready) {
    EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 10));
    EXPECT_TRUE(ready.decision.behind);
    EXPECT_THAT(ready.decision.text, HasSubstr("storage"));
  }
  job.begin_training();
  job.train(11, 20);
  EXPECT_EQ(job.storage->committed_damaged, std::vector<CheckpointId>{CheckpointId(1, 20)});  // it need not be kept
}

TEST(LeaderStorage, FreesSlotsForPiecesReadFromStorage) {
  Stored job(4, 4);
  job.train(1, 12);
  job.lose(2);
  job.lose(3);
  for (std::int64_t k = 13; k < 20; ++k) {  // until no slot is free, for nothing is committed any more
    job.snapshot(0, k);
    job.snapshot(1, k);
  }
  job.boot(2);
  job.boot(3);
  job.start_again();
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
}

TEST(LeaderStorage, StoresAgainDespiteNewerFilesOfAnOlderIncarnation) {
  Stored job(4, 4);
  job.train(1, 34);
  job.storage->damaged = {CheckpointId(1, 20), CheckpointId(1, 30)};
  job.lose_everything();
  job.start_again();
  job.advance(20'000);  // an incarnation for each step that proves damaged
  ASSERT_EQ(job.ready.size(), 4u);
  ASSERT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 10));
  job.begin_training();
  job.train(11, 20);
  EXPECT_TRUE(job.storage->steps.contains(CheckpointId(job.incarnation(), 20)));
}

// Two ranks go on from what four had captured and not yet committed. Until they commit, the newest commit is an older
// one of the four, and the leader knows the places of two ranks' shards alone.
TEST(LeaderStorage, DoesNotStoreALargerJobsCommitWithoutAllItsShards) {
  Stored job(4, 4, 1000);
  job.takes_shards = true;
  job.train(1, 3);
  job.fetching = false;  // no copies of iteration 4 arrive
  job.train(4, 4);
  job.restart_with(2, own_node);
  job.advance(4000);
  EXPECT_EQ(job.incarnation_record().decision.checkpoint, CheckpointId(1, 4));
  EXPECT_EQ(job.incarnation_record().base, CheckpointId(1, 3));
  job.rot(0, main_shard(0), CheckpointId(1, 3));  // a copy of the commit is lost, which is a reason to store it
  job.advance(4000);
  EXPECT_EQ(job.later_steps(), 0u);
}

TEST(LeaderStorage, StoredCheckpointOfAnotherWorldSizeIsAMismatch) {
  Stored job(2, 2);
  job.train(1, 12);
  for (auto& [checkpoint, pieces] : job.storage->steps) {
    for (PieceInfo& piece : pieces) piece.world_size = 8;
  }
  job.lose_everything();
  job.start_again();
  ASSERT_EQ(job.failed.size(), 2u);
  EXPECT_EQ(job.failed.at(0).error, RestoreError::mismatch);
  EXPECT_THAT(job.failed.at(0).text, HasSubstr("8 ranks"));
}

}  // namespace
}  // namespace ckpt::core
