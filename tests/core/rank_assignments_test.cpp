// Who runs where is in records of its own: written before the incarnation's record names it, and read by the next root.
#include "core/leader/rank_assignments.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

std::vector<RankAssignment> some_assignments() {
  return {{0, 7, 107, "row0/rack1", "model", "rank0.private", 4},
          {1, 3, 103, "row0/rack2", "other", "rank1.private", 1},
          {2, 7, 107, "row0/rack1", "model", "rank2.private", 4}};
}

TEST(AssignmentTable, ListsEachNodeAndEachDividedShardOnce) {
  const AssignmentTable assignment_table(5, some_assignments());
  EXPECT_EQ(assignment_table.members(), (std::vector<Member>{{7, 107}, {3, 103}}));
  EXPECT_EQ(assignment_table.cuts(), (std::vector<Cut>{{"model", 4}}));
  EXPECT_TRUE(assignment_table.is_member(3, 103));
  EXPECT_FALSE(assignment_table.is_member(3, 104));
  EXPECT_FALSE(assignment_table.is_member(4, 103));
}

TEST(AssignmentsName, IdentifiesExactlyItsAssignments) {
  const auto name = name_of(5, some_assignments());
  EXPECT_EQ(name.incarnation, 5u);
  EXPECT_EQ(name.count, 3u);
  EXPECT_EQ(AssignmentTable(5, some_assignments()).name(), name);
  EXPECT_TRUE(is_named(name, some_assignments()));
  EXPECT_NE(name_of(6, some_assignments()).digest, name.digest);
  const std::vector<std::function<void(RankAssignment&)>> changes{
      [](RankAssignment& assignment) { ++assignment.rank; },
      [](RankAssignment& assignment) { ++assignment.node; },
      [](RankAssignment& assignment) { ++assignment.arena_id; },
      [](RankAssignment& assignment) { assignment.domain += "0"; },
      [](RankAssignment& assignment) { assignment.main_shard = "m"; },
      [](RankAssignment& assignment) { assignment.private_shard.clear(); },
      [](RankAssignment& assignment) { ++assignment.restored_parts; },
      [](RankAssignment& assignment) { std::swap(assignment.domain, assignment.main_shard); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    for (std::size_t which = 0; which < 3; ++which) {
      auto assignments = some_assignments();
      changes[i](assignments[which]);
      EXPECT_FALSE(is_named(name, assignments)) << i;
    }
  }
  auto assignments = some_assignments();
  assignments.pop_back();
  EXPECT_FALSE(is_named(name, assignments));
  EXPECT_FALSE(is_named(name, {}));
}

TEST(AssignmentsName, RequiresRanksInOrderWithoutGaps) {
  auto assignments = some_assignments();
  std::swap(assignments[0], assignments[1]);
  EXPECT_FALSE(is_named(name_of(5, assignments), assignments));
}

// Four ranks that have committed iteration 7 of incarnation 1.
struct AssignmentsInTheStore : ::testing::Test {
  void SetUp() override {
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    cluster.snapshot_all(7);
    ASSERT_EQ(cluster.status(0).committed, CheckpointId(1, 7));
  }
  void restart() {
    cluster.ready.clear();
    cluster.start_incarnation(own_node);
    cluster.advance(1000);
  }
  // The next incarnation's decision is under way: its rank assignments are written, its record is not.
  SwapIncarnationRecord decide_halfway() {
    cluster.ready.clear();
    for (Rank rank = 0; rank < 4; ++rank) cluster.hello(rank, rank);
    cluster.swapping = false;
    for (Rank rank = 0; rank < 4; ++rank) cluster.ask_restore(rank);
    cluster.advance(1000);
    return cluster.held_swaps.empty() ? SwapIncarnationRecord{} : cluster.held_swaps.front().second;
  }
  Cluster cluster{4, 4};
};

TEST_F(AssignmentsInTheStore, AreReadByTheNextLeaderWhichContinues) {
  EXPECT_EQ(cluster.assignments_asked, 0);
  cluster.change_leader();
  cluster.advance(1000);
  EXPECT_EQ(cluster.assignments_asked, 1);
  cluster.snapshot_all(8);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 8));
}

TEST_F(AssignmentsInTheStore, LeaderSendsNoDirectivesBeforeReadingThem) {
  cluster.reading_assignments = false;
  cluster.change_leader();
  int directives = 0;
  cluster.on_directive = [&](const Directive&) { ++directives; };
  const NodeId leader = *cluster.current_leader();
  cluster.advance(1000);
  cluster.snapshot_all(8);
  EXPECT_EQ(directives, 0);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 7));
  cluster.reading_assignments = true;
  cluster.advance(20'000);  // far longer than a lease: nobody else runs for leader meanwhile
  EXPECT_EQ(cluster.current_leader(), leader);
  EXPECT_GT(directives, 0);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 8));
}

TEST_F(AssignmentsInTheStore, AreIgnoredIfTheyDifferFromTheRecordsName) {
  const auto right = cluster.assignments.at(cluster.incarnation_record().assignments);
  cluster.assignments.at(cluster.incarnation_record().assignments)[2].node = 1;
  cluster.change_leader();
  cluster.advance(4000);
  EXPECT_GE(cluster.assignments_asked, 2);  // again after a while
  cluster.snapshot_all(8);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 7));
  cluster.assignments.at(cluster.incarnation_record().assignments) = right;
  cluster.advance(4000);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 8));
}

TEST_F(AssignmentsInTheStore, AreWrittenBeforeTheRecordThatNamesThem) {
  const SwapIncarnationRecord decision = decide_halfway();
  ASSERT_EQ(decision.record.decision.verdict, Verdict::restore);
  EXPECT_TRUE(cluster.assignments.contains(decision.record.assignments));
  EXPECT_TRUE(cluster.assignments.contains(cluster.incarnation_record().assignments))
      << "the record still names the others";
  cluster.release_swaps();
  cluster.advance(1000);
  EXPECT_EQ(cluster.incarnation_record().assignments, decision.record.assignments);
}

TEST_F(AssignmentsInTheStore, AreKeptIfUndecidedUntilTheNextLeaderDecides) {
  const SwapIncarnationRecord decision = decide_halfway();
  ASSERT_TRUE(cluster.assignments.contains(decision.record.assignments));
  cluster.held_swaps.clear();  // the leader dies before it could write the decision
  cluster.swapping = true;
  const NodeId lost = *cluster.current_leader();
  cluster.lose(lost);
  cluster.boot(lost);
  cluster.hello(lost, lost);
  cluster.ask_restore(lost);
  cluster.advance(20'000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(0).decision.checkpoint, CheckpointId(1, 7));
  EXPECT_NE(cluster.incarnation_record().assignments, decision.record.assignments)
      << "that node's memory is another one";
  EXPECT_EQ(cluster.assignment_table().members().size(), 4u);
  restart();
  EXPECT_EQ(cluster.assignments.size(), 1u) << "what no record ever named goes with the others of its incarnation";
}

// Who led is lost with them. The job ends, and its ranks go on from what is in memory when they are started again.
TEST_F(AssignmentsInTheStore, TheirLossEndsTheIncarnationAndTheNextRestoresItsCommit) {
  cluster.assignments.clear();
  cluster.change_leader();
  cluster.advance(10'000);
  EXPECT_EQ(cluster.incarnation(), 2u);
  EXPECT_EQ(cluster.fenced.size(), 4u);
  restart();
  cluster.advance(10'000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(0).decision.checkpoint, CheckpointId(1, 7));
  cluster.begin_training();
  cluster.snapshot_all(8);
  EXPECT_EQ(cluster.commits.at(0).iteration(), 8);
}

TEST_F(AssignmentsInTheStore, AreRemovedWhenALaterIncarnationHasBegun) {
  const AssignmentsName first = cluster.incarnation_record().assignments;
  restart();
  EXPECT_FALSE(cluster.assignments.contains(first));
  EXPECT_EQ(cluster.assignments.size(), 1u);
  EXPECT_TRUE(cluster.assignments.contains(cluster.incarnation_record().assignments));
}

TEST_F(AssignmentsInTheStore, SayHowTheRestoredCheckpointIsDivided) {
  Cluster shared(4, 4);
  shared.main_of = [](Rank) { return "model"; };
  shared.start_incarnation(own_node);
  shared.begin_training();
  shared.snapshot_all(7);
  shared.ready.clear();
  shared.start_incarnation(own_node);
  shared.advance(500);
  EXPECT_EQ(shared.assignment_table().cuts(), (std::vector<Cut>{{"model", 4}}));
  EXPECT_TRUE(shared.incarnation_record().decision.cuts.empty());
  EXPECT_EQ(shared.ready.at(0).main.size(), 4u);
}

}  // namespace
}  // namespace ckpt::core
