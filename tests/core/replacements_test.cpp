#include "core/leader/replacements.hpp"

#include <gtest/gtest.h>

#include "cluster.hpp"
#include "core/leader/incarnation_placement.hpp"

namespace ckpt::core {
namespace {

RankAssignment assignment(NodeId node, const std::string& domain = "") {
  return {node, node, 100 + node, domain, "main", "private"};
}
StandbyNode standby(NodeId node, const std::string& domain = "") { return {{node, 100 + node}, domain}; }

TEST(ChoosingReplacements, ReplacesEveryLostNodeWhileStandbysLast) {
  const auto chosen = choose_replacements({}, {assignment(1), assignment(2), assignment(3)}, {standby(8), standby(9)});
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[0].lost, 1u);
  EXPECT_EQ(chosen[1].lost, 2u);
  EXPECT_NE(chosen[0].by, chosen[1].by);
}

TEST(ChoosingReplacements, ReplacesANodeOfSeveralRanksByOneStandby) {
  EXPECT_EQ(choose_replacements({}, {assignment(1), assignment(1)}, {standby(8), standby(9)}).size(), 1u);
}

TEST(ChoosingReplacements, KeepsExistingReplacements) {
  const std::vector<Replacement> before{{2, {9, 109}}};
  const auto chosen = choose_replacements(before, {assignment(1), assignment(2)}, {standby(8), standby(9)});
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[0], before[0]);
  EXPECT_EQ(chosen[1], (Replacement{1, {8, 108}}));
}

TEST(ChoosingReplacements, EndsTheReplacementWhenTheLostNodeReturns) {
  EXPECT_TRUE(choose_replacements({{2, {9, 109}}}, {}, {standby(9)}).empty());
}

TEST(ChoosingReplacements, ReplacesAReplacementThatIsGoneOrLostItsMemory) {
  EXPECT_EQ(choose_replacements({{2, {9, 109}}}, {assignment(2)}, {standby(8)}),
            (std::vector<Replacement>{{2, {8, 108}}}));
  EXPECT_EQ(choose_replacements({{2, {9, 5}}}, {assignment(2)}, {standby(9)}),
            (std::vector<Replacement>{{2, {9, 109}}}));
}

TEST(ChoosingReplacements, KeepsAnAbsentReplacementIfNoStandbyIsFree) {
  const std::vector<Replacement> before{{2, {9, 109}}};
  EXPECT_EQ(choose_replacements(before, {assignment(2)}, {}), before);
  EXPECT_EQ(choose_replacements(before, {assignment(1), assignment(2)}, {standby(8)}).size(), 2u);
  EXPECT_TRUE(choose_replacements(before, {}, {}).empty()) << "the lost node is back";
}

TEST(ChoosingReplacements, PrefersTheFailureDomainOfTheLostNode) {
  const std::vector<StandbyNode> standbys{standby(7, "row1/rack1"), standby(8, "row2/rack5"),
                                          standby(9, "row2/rack55")};
  EXPECT_EQ(choose_replacements({}, {assignment(1, "row2/rack55")}, standbys)[0].by.node, 9u);
  EXPECT_EQ(choose_replacements({}, {assignment(1, "row2/rack5")}, standbys)[0].by.node, 8u);
  EXPECT_EQ(choose_replacements({}, {assignment(1, "row1/rack2")}, standbys)[0].by.node, 7u);
  EXPECT_EQ(choose_replacements({}, {assignment(1, "row3/rack2")}, standbys)[0].by.node, 7u);
}

std::vector<std::string> names(const IncarnationPlacement::Tasks& tasks, bool Role::*does) {
  std::vector<std::string> names;
  for (const auto& [place, role] : tasks) {
    if (role.*does) names.push_back(place->first);
  }
  return names;
}

TEST(IncarnationPlacement, GivesTheReplacementTheMembersPlacesAndTakesThemBack) {
  IncarnationRecord incarnation_record;
  std::vector<RankAssignment> assignments;
  for (Rank rank = 0; rank < 4; ++rank)
    assignments.push_back({rank, rank, 100, "", main_shard(rank), private_shard(rank)});
  incarnation_record.protection = placement::Protection::of_copies(2);
  IncarnationPlacement places(incarnation_record, AssignmentTable(1, assignments));
  const auto held = names(places.own_of(2), &Role::holds), captured = names(places.own_of(2), &Role::captures);
  ASSERT_EQ(held.size(), 4u);
  places.put_in_replacements({{2, {9, 109}}});
  EXPECT_EQ(names(places.own_of(9), &Role::holds), held);
  EXPECT_EQ(names(places.own_of(9), &Role::captures), std::vector<std::string>());
  EXPECT_EQ(names(places.own_of(2), &Role::holds), std::vector<std::string>());
  places.put_in_replacements({{2, {2, 109}}});  // the same machine, with a memory that is empty
  EXPECT_EQ(names(places.own_of(2), &Role::holds), held);
  places.put_in_replacements({});
  EXPECT_EQ(names(places.own_of(2), &Role::holds), held);
  EXPECT_EQ(names(places.own_of(2), &Role::captures), captured);
  EXPECT_TRUE(places.own_of(9).empty());
}

// Four ranks on nodes 0 to 3; the rest stands by.
class Replacements : public ::testing::Test {
 protected:
  void start(NodeId spares) {
    for (NodeId node = 4; node < 4 + spares; ++node) cluster_.standbys.insert(node);
    for (NodeId node = 4; node < 4 + spares; ++node) cluster_.boot(node);
    cluster_.start_incarnation(own_node);
    cluster_.begin_training();
    cluster_.snapshot_all(7);
    ASSERT_EQ(cluster_.status(0).committed, CheckpointId(1, 7));
  }
  bool holds(NodeId node, const std::string& shard) {
    const auto status = cluster_.status(node);
    return std::any_of(status.pieces.begin(), status.pieces.end(),
                       [&](const PieceInfo& piece) { return piece.shard == shard; });
  }
  bool was_notified(Change change, NodeId node, NodeId by = no_node) {
    return std::any_of(cluster_.changes.begin(), cluster_.changes.end(), [&](const MemberChanged& changed) {
      return changed.change == change && changed.node == node && changed.by == by;
    });
  }
  void cut_off(NodeId lost) {
    for (NodeId node = 0; node < 6; ++node) {
      cluster_.cut.insert({node, lost});
      cluster_.cut.insert({lost, node});
    }
  }

  Cluster cluster_{4, 4};
};

TEST_F(Replacements, BringTheCopiesBackBeforeTheJobStartsAgain) {
  start(1);
  EXPECT_TRUE(cluster_.status(4).pieces.empty());
  cluster_.lose(2);
  cluster_.advance(6000);
  EXPECT_EQ(cluster_.incarnation(), 1u);
  EXPECT_EQ(cluster_.status(0).copies_now, 2u);
  EXPECT_TRUE(holds(4, main_shard(2)));
  EXPECT_TRUE(holds(4, private_shard(2)));
  EXPECT_EQ(cluster_.status(0).replacements, (std::vector<Replacement>{cluster_.incarnation_record().replacements}));
  EXPECT_TRUE(was_notified(Change::lost, 2));
  EXPECT_TRUE(was_notified(Change::replaced, 2, 4));
}

// The next leader has not seen the checkpoint whole, and hears from others that it was committed.
TEST_F(Replacements, BringTheCopiesBackIfTheLostNodeLed) {
  start(1);
  const NodeId lost = *cluster_.current_leader();
  ASSERT_LT(lost, 4u);
  cluster_.lose(lost);
  cluster_.advance(10'000);
  ASSERT_TRUE(cluster_.current_leader());
  EXPECT_TRUE(holds(4, main_shard(lost)));
  EXPECT_TRUE(holds(4, private_shard(lost)));
  EXPECT_EQ(cluster_.status(*cluster_.current_leader()).copies_now, 2u);
}

// The lease that ran out counts for the silence.
TEST_F(Replacements, AreRequestedWithin3SecondsIfTheLostNodeLed) {
  start(1);
  const NodeId lost = *cluster_.current_leader();
  cluster_.lose(lost);
  cluster_.advance(3000);
  EXPECT_TRUE(was_notified(Change::lost, lost));
  EXPECT_TRUE(was_notified(Change::replaced, lost, 4));
}

TEST_F(Replacements, AreNotRequestedIfOnlyTheLeadersLeaseExpired) {
  start(1);
  cluster_.change_leader();
  cluster_.advance(10'000);
  EXPECT_TRUE(cluster_.changes.empty());
}

TEST_F(Replacements, AreNotRequestedEarlyIfAnotherNodeIsAlsoSilent) {
  start(2);
  const NodeId former = *cluster_.current_leader();
  const NodeId other = former == 3 ? 2 : 3;
  cluster_.lose(former);
  cluster_.lose(other);
  while (!cluster_.current_leader() || *cluster_.current_leader() == former) cluster_.advance(50);
  cluster_.advance(1900);
  EXPECT_TRUE(cluster_.changes.empty());
  cluster_.advance(600);
  EXPECT_TRUE(was_notified(Change::lost, former));
  EXPECT_TRUE(was_notified(Change::lost, other));
}

// Nobody was heard before it could tell anybody anything, and that was late.
TEST_F(Replacements, AreNotRequestedByALeaderThatWasElectedLate) {
  start(1);
  cluster_.swapping = false;
  cluster_.lose(*cluster_.current_leader());
  cluster_.advance(20'000);
  cluster_.changes.clear();
  cluster_.release_swaps();
  for (const MemberChanged& changed : cluster_.changes) EXPECT_NE(changed.change, Change::lost) << changed.node;
}

TEST_F(Replacements, LetTheLostNodesRankRestoreFromItsOwnMemory) {
  start(1);
  cluster_.lose(2);
  cluster_.advance(6000);
  cluster_.ready.clear();
  cluster_.start_incarnation([](Rank rank) { return rank == 2 ? 4 : rank; });
  cluster_.advance(8000);
  ASSERT_EQ(cluster_.ready.size(), 4u);
  for (const auto& [rank, ready] : cluster_.ready) {
    EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 7));
    EXPECT_EQ(ready.main[0].tier, Tier::local) << rank;
    EXPECT_EQ(ready.main[0].slot.shard, main_shard(rank));
  }
  EXPECT_TRUE(cluster_.incarnation_record().replacements.empty());
  EXPECT_TRUE(was_notified(Change::released, 2));
  cluster_.begin_training();
  cluster_.snapshot_all(8);
  EXPECT_EQ(cluster_.status(0).committed, CheckpointId(2, 8));
}

TEST_F(Replacements, LeaveWhenTheLostNodeComesBack) {
  start(1);
  cut_off(2);
  cluster_.advance(6000);
  ASSERT_FALSE(cluster_.incarnation_record().replacements.empty());
  EXPECT_TRUE(holds(4, main_shard(2)));
  cluster_.cut.clear();
  cluster_.advance(3000);
  EXPECT_TRUE(cluster_.incarnation_record().replacements.empty());
  EXPECT_TRUE(was_notified(Change::returned, 2));
  cluster_.snapshot_all(8);
  EXPECT_EQ(cluster_.status(0).committed, CheckpointId(1, 8));
  EXPECT_FALSE(holds(4, main_shard(2)));
}

// Node 2's own copies are behind; it would bear witness against a commit that the replacement has made possible.
TEST_F(Replacements, DoNotHelpToCommitNewCheckpoints) {
  start(1);
  cluster_.fetching = false;
  cluster_.snapshot_all(8);
  cut_off(2);
  cluster_.advance(4000);
  cluster_.release_fetches();
  cluster_.advance(4000);
  ASSERT_FALSE(cluster_.incarnation_record().replacements.empty());
  EXPECT_EQ(cluster_.status(0).committed, CheckpointId(1, 7));
  cluster_.cut.clear();
  cluster_.advance(3000);
  EXPECT_EQ(cluster_.status(0).committed, CheckpointId(1, 8));
  EXPECT_TRUE(holds(2, main_shard(2)));
  EXPECT_TRUE(cluster_.incarnation_record().replacements.empty());
}

TEST_F(Replacements, ReplaceANodeThatReturnedWithoutItsMemory) {
  start(1);
  cluster_.boot(2);  // at once, under its old name
  cluster_.advance(6000);
  ASSERT_EQ(cluster_.incarnation_record().replacements.size(), 1u);
  EXPECT_EQ(cluster_.incarnation_record().replacements[0].by.node, 4u);
  EXPECT_EQ(cluster_.status(0).copies_now, 2u);
  EXPECT_FALSE(was_notified(Change::returned, 2));
}

TEST_F(Replacements, MayBeTheSameMachineReturnedWithoutItsMemory) {
  start(0);
  cluster_.lose(2);
  cluster_.advance(1000);
  cluster_.standbys.insert(2);
  cluster_.boot(2);
  cluster_.advance(6000);
  ASSERT_EQ(cluster_.incarnation_record().replacements.size(), 1u);
  EXPECT_EQ(cluster_.incarnation_record().replacements[0].by.node, 2u);
  EXPECT_TRUE(holds(2, main_shard(2)));
}

TEST_F(Replacements, AreRequestedForAMemberLostJustBeforeARestart) {
  start(0);
  cluster_.lose(2);
  cluster_.start_incarnation([](Rank rank) { return rank == 2 ? 3 : rank; });
  cluster_.advance(12'000);
  ASSERT_EQ(cluster_.incarnation(), 2u);
  EXPECT_TRUE(was_notified(Change::lost, 2));
  EXPECT_TRUE(was_notified(Change::released, 2));
}

TEST_F(Replacements, LeadTheJobOnlyIfNoOtherNodeDoes) {
  for (NodeId node = 0; node < 4; ++node) cluster_.lose(node);
  cluster_.standbys.insert(0);
  for (NodeId node = 0; node < 4; ++node) cluster_.boot(node);
  cluster_.advance(10'000);
  EXPECT_NE(*cluster_.current_leader(), 0u);
}

TEST_F(Replacements, AreReplacedWhenTheyAreLost) {
  start(2);
  cluster_.lose(2);
  cluster_.advance(6000);
  const NodeId first = cluster_.incarnation_record().replacements.at(0).by.node;
  cluster_.lose(first);
  cluster_.advance(6000);
  ASSERT_EQ(cluster_.incarnation_record().replacements.size(), 1u);
  EXPECT_NE(cluster_.incarnation_record().replacements[0].by.node, first);
  EXPECT_EQ(cluster_.status(0).copies_now, 2u);
}

TEST_F(Replacements, SurviveAChangeOfLeader) {
  start(1);
  cluster_.lose(2);
  cluster_.advance(6000);
  const auto before = cluster_.incarnation_record().replacements;
  cluster_.change_leader();
  cluster_.advance(8000);
  EXPECT_EQ(cluster_.incarnation_record().replacements, before);
  EXPECT_TRUE(holds(4, main_shard(2)));
}

// Its node holds the last copies. State is not told to be lost before nodes had time to answer. Where something older
// could be restored meanwhile, a rule of its own awaits the replacement: see absent_replacement_test.cpp.
TEST_F(Replacements, HaveTimeToAnswerBeforeTheirStateIsDeclaredLost) {
  start(1);
  cluster_.lose(2);
  cluster_.advance(6000);
  ASSERT_TRUE(holds(4, main_shard(2)));
  cluster_.lose(3);
  cluster_.advance(1000);
  cluster_.stop(4);
  cluster_.advance(60'000);
  cluster_.ready.clear();
  for (const NodeId node : {2u, 3u}) cluster_.boot(node);
  cluster_.start_incarnation(own_node);
  cluster_.advance(4000);
  EXPECT_TRUE(cluster_.ready.empty());
  EXPECT_TRUE(cluster_.failed.empty());
  cluster_.resume(4);
  cluster_.advance(8000);
  ASSERT_EQ(cluster_.ready.size(), 4u);
  for (const auto& [rank, ready] : cluster_.ready) EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 7)) << rank;
}

TEST_F(Replacements, AreChosenOnlyFromStandbyNodes) {
  cluster_.boot(4);
  start(0);
  cluster_.lose(2);
  cluster_.advance(6000);
  EXPECT_TRUE(cluster_.incarnation_record().replacements.empty());
  EXPECT_EQ(cluster_.status(0).copies_now, 1u);
  EXPECT_TRUE(was_notified(Change::lost, 2));
}

// It sees nobody any more, and neither it nor the others have gone.
TEST_F(Replacements, AreNotRequestedByAnIsolatedLeader) {
  start(1);
  const NodeId old = *cluster_.current_leader();
  cut_off(old);
  cluster_.advance(20'000);
  for (NodeId node = 0; node < 4; ++node) EXPECT_EQ(was_notified(Change::lost, node), node == old) << node;
}

TEST_F(Replacements, AreNotRequestedByALeaderThatWasStopped) {
  start(1);
  const NodeId old = *cluster_.current_leader();
  cluster_.stop(old);
  cluster_.advance(10'000);
  ASSERT_NE(*cluster_.current_leader(), old);
  cluster_.changes.clear();
  cluster_.resume(old);
  cluster_.advance(3'000);
  for (const MemberChanged& changed : cluster_.changes) EXPECT_NE(changed.change, Change::lost) << changed.node;
}

// It draws its conclusions a second apart then; that is no pause in which it did not listen.
TEST_F(Replacements, AreRequestedByALeaderWithVeryManyPieces) {
  cluster_.configure = [](Config& config) {
    config.node_timeout_ms = 1500;
    config.pieces_per_ms = 1;
  };
  cluster_.standbys.insert(4);
  for (NodeId node = 0; node < 5; ++node) cluster_.boot(node);
  cluster_.advance(5000);
  cluster_.start_incarnation(own_node);
  cluster_.advance(1000);
  cluster_.begin_training();
  cluster_.advance(1000);
  ASSERT_FALSE(cluster_.granted().empty());
  Report report;
  report.node = 9;
  report.agent_id = report.sequence = 1;
  for (int i = 0; i < 2000; ++i) report.pieces.push_back(piece_of("other" + std::to_string(i), CheckpointId(1, 1), 4));
  cluster_.feed(*cluster_.current_leader(), MessageArrived{9, report});
  cluster_.lose(*cluster_.current_leader() == 2 ? 3 : 2);
  cluster_.advance(10'000);
  EXPECT_EQ(cluster_.incarnation_record().replacements.size(), 1u);
}

TEST_F(Replacements, AreRequestedByALeaderThatIsTheLastNodeLeft) {
  start(0);
  for (NodeId node = 0; node < 4; ++node) {
    if (node != *cluster_.current_leader()) cluster_.lose(node);
  }
  cluster_.advance(15'000);
  EXPECT_EQ(cluster_.changes.size(), 3u);
}

// What is found out in arranging them is told each time.
TEST_F(Replacements, KeepTheIncarnationsPlacement) {
  for (NodeId node = 0; node < 4; ++node) {
    cluster_.domains[node] = node == 3 ? "rack2" : "rack1";
    cluster_.boot(node);
  }
  start(2);
  const auto domain_notices = [&] {
    return std::count_if(cluster_.notices.begin(), cluster_.notices.end(),
                         [](const auto& notice) { return notice.find("failure domains") != std::string::npos; });
  };
  ASSERT_EQ(domain_notices(), 1);
  cluster_.lose(2);
  cluster_.advance(6000);
  cluster_.lose(cluster_.incarnation_record().replacements.at(0).by.node);
  cluster_.advance(6000);
  EXPECT_EQ(cluster_.incarnation_record().replacements.size(), 1u);
  EXPECT_EQ(domain_notices(), 1);
}

TEST_F(Replacements, KeepTheParityOfTheLostNode) {
  cluster_.protection = placement::protection_named("xor(4)");
  for (NodeId node = 0; node < 4; ++node) cluster_.boot(node);
  start(1);
  cluster_.lose(1);
  cluster_.advance(8000);
  EXPECT_EQ(cluster_.status(0).parity_now, 1u);
  EXPECT_TRUE(holds(4, main_shard(1)));
}

}  // namespace
}  // namespace ckpt::core
